// Reads the elements of an ONNX TensorProto.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "ops/tensor/shape.h"
#include "third_party/onnx/onnx.pb.h"

namespace espalier::onnx_import {

struct Elements {
  TensorType type;
  std::string bytes;  // little-endian, row-major
};

// f64 is rounded to f32, i8 to u32 widths are widened to i32 or i64. InvalidArgument if the number
// of elements does not fit the shape; Unimplemented for external data and strings.
absl::StatusOr<Elements> ReadTensor(const onnx::TensorProto& tensor);

// kInvalid if Espalier has no such type.
DType FromOnnx(int onnx_type);

}  // namespace espalier::onnx_import
