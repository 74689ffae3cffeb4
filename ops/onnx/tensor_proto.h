// Reads the elements of an ONNX TensorProto, and numbers from bytes.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/onnx/import.h"
#include "ops/tensor/shape.h"
#include "third_party/onnx/onnx.pb.h"

namespace espalier::onnx_import {

// Unimplemented for element types that are not taken, InvalidArgument for wrong dimensions.
absl::StatusOr<TensorType> TypeOf(const onnx::TensorProto& tensor);

// f64 is rounded to f32. InvalidArgument if the number of elements does not fit the shape.
// `folder` is where external data lies (see ImportOptions).
absl::StatusOr<HostTensor> ReadTensor(const onnx::TensorProto& tensor, const std::string& folder);

// kInvalid if Espalier has no such type.
DType FromOnnx(int onnx_type);
int ToOnnx(DType type);

// f32, integers and bools.
std::vector<double> NumbersOf(const TensorType& type, const std::string& bytes);
std::vector<int64_t> IntegersOf(const TensorType& type, const std::string& bytes);
void AppendNumber(DType dtype, double value, std::string* bytes);

}  // namespace espalier::onnx_import
