// Histories as pictures on one page.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/history/exporter.h"
#include "client/cli/history/output_file.h"
#include "client/cli/history/series.h"

namespace espalier {

// A line plot for each label, with a line for each run; for histograms a map of steps and values
// for each run.
class SvgExporter : public HistoryExporter {
 public:
  explicit SvgExporter(std::unique_ptr<OutputFile> out) : out_(std::move(out)) {}
  absl::Status Add(const v1::HistoryRow& row) override;
  absl::Status Finish() override;
  std::vector<std::string> Notes() const override;

 private:
  std::unique_ptr<OutputFile> out_;
  SeriesCollector collector_;
  int64_t left_out_ = 0;  // series
};

}  // namespace espalier
