// Reads the elements of an ONNX TensorProto, and numbers from bytes.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/graph/initial_value.h"
#include "ops/onnx/import.h"
#include "ops/onnx/model_file.h"
#include "ops/tensor/shape.h"
#include "third_party/onnx/onnx.pb.h"

namespace espalier::onnx_import {

// Returns Unimplemented for unsupported element types, InvalidArgument for wrong dimensions.
absl::StatusOr<TensorType> TypeOf(const onnx::TensorProto& tensor);

// Rounds f64 to f32. Returns InvalidArgument if the number of elements does not match the shape.
absl::StatusOr<HostTensor> ReadTensor(const onnx::TensorProto& tensor, const ModelFile& file);
// The same for a tensor that is no initializer of the model's graph; `folder` holds external data
// (see ImportOptions).
absl::StatusOr<HostTensor> ReadTensor(const onnx::TensorProto& tensor, const std::string& folder);

// Checks all that ReadTensor would, without reading the elements.
absl::Status CheckTensor(const onnx::TensorProto& tensor, const ModelFile& file);
// As ReadTensor, but elements that lie in a file are read by the result, which keeps the model's
// file open and does not need `tensor`. Others are copied.
absl::StatusOr<InitialValue> DeferredTensor(const onnx::TensorProto& tensor, const ModelFile& file);

// Returns kInvalid if Espalier has no such type.
DType FromOnnx(int onnx_type);
int ToOnnx(DType type);

// For f32, integers and bools.
std::vector<double> NumbersOf(const TensorType& type, const std::string& bytes);
std::vector<int64_t> IntegersOf(const TensorType& type, const std::string& bytes);
void AppendNumber(DType dtype, double value, std::string* bytes);

}  // namespace espalier::onnx_import
