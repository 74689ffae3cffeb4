// Histories as comma-separated values (RFC 4180).
#pragma once

#include <memory>
#include <utility>

#include "client/cli/history/exporter.h"
#include "client/cli/history/output_file.h"

namespace espalier {

// Columns experiment, version, job, step, name, reduction, source, replay, value. Scalars are
// ExactNumber, other values JSON.
class CsvExporter : public HistoryExporter {
 public:
  explicit CsvExporter(std::unique_ptr<OutputFile> out) : out_(std::move(out)) {}
  absl::Status Add(const v1::HistoryRow& row) override;
  absl::Status Finish() override;

 private:
  absl::Status Head();

  std::unique_ptr<OutputFile> out_;
  bool head_ = false;
};

}  // namespace espalier
