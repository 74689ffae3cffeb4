#include "client/cli/history/parquet_exporter.h"

#include <utility>
#include <vector>

#include "client/cli/history/row_values.h"

namespace espalier {
namespace {

enum HistoryColumn : size_t {
  kExperiment,
  kVersionNumber,
  kJob,
  kStep,
  kName,
  kReduction,
  kSource,
  kReplay,
  kTime,
  kValue,
  kLow,
  kHigh,
  kCounts,
  kOutside,
  kIndices,
  kValues,
  kDType,
  kDims,
};

std::vector<ParquetColumn> HistoryColumns() {
  using Column = ParquetColumn;
  return {{"experiment", Column::kText},
          {"version", Column::kInt64},
          {"job", Column::kText},
          {"step", Column::kInt64},
          {"name", Column::kText},
          {"reduction", Column::kText},
          {"source", Column::kText},
          {"replay", Column::kText},
          {"time", Column::kUnixMs, Column::kOptional},
          {"value", Column::kDouble, Column::kOptional},
          {"low", Column::kDouble, Column::kOptional},
          {"high", Column::kDouble, Column::kOptional},
          {"counts", Column::kInt64, Column::kList},
          {"outside", Column::kInt64, Column::kOptional},
          {"indices", Column::kInt64, Column::kList},
          {"values", Column::kDouble, Column::kList},
          {"dtype", Column::kText, Column::kOptional},
          {"dims", Column::kInt64, Column::kList}};
}

template <typename T>
std::vector<T> ToVector(const google::protobuf::RepeatedField<T>& values) {
  return {values.begin(), values.end()};
}

}  // namespace

ParquetExporter::ParquetExporter(std::unique_ptr<OutputFile> out)
    : writer_(std::move(out), HistoryColumns()) {}

absl::Status ParquetExporter::Add(const v1::HistoryRow& row) {
  writer_.Text(kExperiment, row.experiment());
  writer_.Int64(kVersionNumber, row.version());
  writer_.Text(kJob, row.job_id());
  writer_.Int64(kStep, row.step());
  writer_.Text(kName, row.name());
  writer_.Text(kReduction, row.reduction());
  writer_.Text(kSource, SourceOf(row));
  writer_.Text(kReplay, row.replay_id());
  if (row.unix_ms() != 0) writer_.Int64(kTime, row.unix_ms());
  const v1::ProbeValue& value = row.value();
  if (const auto number = NumberOf(value)) {
    writer_.Double(kValue, *number);
  } else if (value.has_histogram()) {
    writer_.Double(kLow, value.histogram().low());
    writer_.Double(kHigh, value.histogram().high());
    writer_.Int64List(kCounts, ToVector(value.histogram().counts()));
    writer_.Int64(kOutside, value.histogram().outside());
  } else if (value.has_elements()) {
    writer_.Int64List(kIndices, ToVector(value.elements().indices()));
    writer_.DoubleList(kValues, ToVector(value.elements().values()));
  } else if (value.has_tensor()) {
    writer_.Text(kDType, DTypeNameOf(value.tensor()));
    writer_.Int64List(kDims, ToVector(value.tensor().dims()));
    writer_.DoubleList(kValues, TensorDoubles(value.tensor()));
  }
  return writer_.EndRow();
}

}  // namespace espalier
