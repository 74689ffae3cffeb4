#include "worker/trainer/reported_tensor.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "ops/graph/graph_proto.h"

namespace espalier {

absl::Status CheckTensor(const ReportedTensor& tensor) {
  if (tensor.dtype == DType::kInvalid) {
    return absl::InvalidArgumentError("the tensor has no known data type");
  }
  int64_t bytes = static_cast<int64_t>(SizeOf(tensor.dtype));
  for (int64_t dim : tensor.dims) {
    if (dim < 0 || __builtin_mul_overflow(bytes, dim, &bytes)) {
      return absl::InvalidArgumentError(absl::StrCat("dimension ", dim, " of the tensor is ",
                                                     dim < 0 ? "negative" : "too large"));
    }
  }
  if (static_cast<int64_t>(tensor.data.size()) != bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the tensor has ", tensor.data.size(), " bytes, but its type and dimensions need ", bytes));
  }
  return absl::OkStatus();
}

v1::TensorValue ToProto(const ReportedTensor& tensor) {
  v1::TensorValue message;
  message.set_dtype(ToProto(tensor.dtype));
  for (int64_t dim : tensor.dims) message.add_dims(dim);
  message.set_data(tensor.data);
  return message;
}

absl::StatusOr<ReportedTensor> FromProto(const v1::TensorValue& message) {
  ReportedTensor tensor;
  tensor.dtype = FromProto(message.dtype());
  tensor.dims.assign(message.dims().begin(), message.dims().end());
  tensor.data = message.data();
  if (absl::Status s = CheckTensor(tensor); !s.ok()) return s;
  return tensor;
}

}  // namespace espalier
