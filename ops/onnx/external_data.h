// Tensors whose bytes lie in another file than the ONNX model.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "third_party/onnx/onnx.pb.h"

namespace espalier::onnx_import {

// The `size` bytes that the tensor names. Only files beneath `folder` are read: the path must be
// relative, without "." or "..", and no part of it may be a symbolic link.
absl::StatusOr<std::string> ReadExternalData(const onnx::TensorProto& tensor,
                                             const std::string& folder, int64_t size);

}  // namespace espalier::onnx_import
