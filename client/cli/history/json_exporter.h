// Histories as JSON lines.
#pragma once

#include <memory>
#include <utility>

#include "client/cli/history/exporter.h"
#include "client/cli/history/output_file.h"

namespace espalier {

// An object per row: experiment, version, job, step, name, reduction, source, replay, unix_ms,
// value (ValueJson).
class JsonExporter : public HistoryExporter {
 public:
  explicit JsonExporter(std::unique_ptr<OutputFile> out) : out_(std::move(out)) {}
  absl::Status Add(const v1::HistoryRow& row) override;
  absl::Status Finish() override { return out_->Finish(); }

 private:
  std::unique_ptr<OutputFile> out_;
};

}  // namespace espalier
