// Histories as Parquet files.
#pragma once

#include <memory>

#include "client/cli/history/exporter.h"
#include "client/cli/history/output_file.h"
#include "client/cli/history/parquet_writer.h"

namespace espalier {

// Columns as CsvExporter, with `time`; `value` is a scalar's. Histograms are in `low`, `high`,
// `counts` and `outside`; elements in `indices` and `values`; tensors in `dtype`, `dims` and
// `values`, where integers beyond 2^53 are rounded.
class ParquetExporter : public HistoryExporter {
 public:
  explicit ParquetExporter(std::unique_ptr<OutputFile> out);
  absl::Status Add(const v1::HistoryRow& row) override;
  absl::Status Finish() override { return writer_.Finish(); }

 private:
  ParquetWriter writer_;
};

}  // namespace espalier
