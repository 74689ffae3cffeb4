// Reads the elements of an ONNX TensorProto, and numbers from bytes.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/onnx/import.h"
#include "ops/tensor/shape.h"
#include "third_party/onnx/onnx.pb.h"

namespace espalier::onnx_import {

// Returns Unimplemented for unsupported element types, InvalidArgument for wrong dimensions.
absl::StatusOr<TensorType> TypeOf(const onnx::TensorProto& tensor);

// Rounds f64 to f32. Returns InvalidArgument if the number of elements does not match the shape.
// `folder` holds external data (see ImportOptions).
absl::StatusOr<HostTensor> ReadTensor(const onnx::TensorProto& tensor, const std::string& folder);

// Returns kInvalid if Espalier has no such type.
DType FromOnnx(int onnx_type);
int ToOnnx(DType type);

// For f32, integers and bools.
std::vector<double> NumbersOf(const TensorType& type, const std::string& bytes);
std::vector<int64_t> IntegersOf(const TensorType& type, const std::string& bytes);
void AppendNumber(DType dtype, double value, std::string* bytes);

}  // namespace espalier::onnx_import
