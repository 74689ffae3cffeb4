// Rows of histories for tests.
#pragma once

#include <string>
#include <vector>

#include "espalier/v1/replay.pb.h"

namespace espalier {

inline v1::HistoryRow EmptyRow(int64_t version, int64_t step, const std::string& name,
                               const std::string& reduction = "") {
  v1::HistoryRow row;
  row.set_experiment("lm");
  row.set_version(version);
  row.set_job_id("job-" + std::to_string(version));
  row.set_step(step);
  row.set_name(name);
  row.set_reduction(reduction);
  row.set_unix_ms(1'700'000'000'000 + step * 1000);
  if (!reduction.empty()) {
    row.set_source(v1::HistoryRow::REPLAY);
    row.set_replay_id("replay-1");
  }
  return row;
}

inline v1::HistoryRow ScalarRow(int64_t version, int64_t step, const std::string& name,
                                double value, const std::string& reduction = "") {
  v1::HistoryRow row = EmptyRow(version, step, name, reduction);
  row.mutable_value()->set_scalar(value);
  return row;
}

inline v1::HistoryRow HistogramRow(int64_t version, int64_t step, const std::string& name,
                                   double low, double high, const std::vector<int64_t>& counts,
                                   int64_t outside = 0) {
  v1::HistoryRow row =
      EmptyRow(version, step, name, "histogram(" + std::to_string(counts.size()) + ")");
  v1::Histogram* const histogram = row.mutable_value()->mutable_histogram();
  histogram->set_low(low);
  histogram->set_high(high);
  histogram->mutable_counts()->Add(counts.begin(), counts.end());
  histogram->set_outside(outside);
  return row;
}

inline v1::HistoryRow ElementsRow(int64_t version, int64_t step, const std::string& name,
                                  const std::string& reduction, const std::vector<double>& values) {
  v1::HistoryRow row = EmptyRow(version, step, name, reduction);
  for (size_t i = 0; i < values.size(); ++i) {
    row.mutable_value()->mutable_elements()->add_indices(static_cast<int64_t>(i) * 7);
    row.mutable_value()->mutable_elements()->add_values(values[i]);
  }
  return row;
}

template <typename T>
v1::HistoryRow TensorRow(int64_t version, int64_t step, const std::string& name,
                         const std::string& reduction, v1::DataType dtype,
                         const std::vector<int64_t>& dims, const std::vector<T>& values) {
  v1::HistoryRow row = EmptyRow(version, step, name, reduction);
  v1::TensorValue* const tensor = row.mutable_value()->mutable_tensor();
  tensor->set_dtype(dtype);
  tensor->mutable_dims()->Add(dims.begin(), dims.end());
  tensor->set_data(
      std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)));
  return row;
}

}  // namespace espalier
