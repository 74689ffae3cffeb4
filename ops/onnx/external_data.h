// External data: tensors whose bytes lie outside of the ONNX file.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "third_party/onnx/onnx.pb.h"

namespace espalier::onnx_import {

// Returns the `size` bytes that the tensor refers to. Reads only files below `folder`: the path
// must be relative, without "." or "..", and no component may be a symbolic link.
absl::StatusOr<std::string> ReadExternalData(const onnx::TensorProto& tensor,
                                             const std::string& folder, int64_t size);

}  // namespace espalier::onnx_import
