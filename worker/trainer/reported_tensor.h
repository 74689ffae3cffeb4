// Tensors in a step's report, and their form on the wire.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "espalier/v1/training.pb.h"
#include "ops/tensor/dtype.h"
#include "ops/tensor/shape.h"

namespace espalier {

// Limit of the tensors in one report; the coordinator holds all ranks' reports of a step to it
// together (StepReport.tensors in training.proto).
inline constexpr int64_t kMaxReportTensorBytes = 4 << 20;

struct ReportedTensor {
  DType dtype = DType::kInvalid;
  Dims dims;         // outermost first; empty: one element
  std::string data;  // row-major, little-endian
};

// Returns InvalidArgument that says what is wrong: no data type, a negative or overflowing
// dimension, or a size that is not that of the elements.
absl::Status CheckTensor(const ReportedTensor& tensor);

v1::TensorValue ToProto(const ReportedTensor& tensor);
// Errors as CheckTensor.
absl::StatusOr<ReportedTensor> FromProto(const v1::TensorValue& message);

}  // namespace espalier
