// External data: tensors whose bytes lie outside of the ONNX file.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "third_party/onnx/onnx.pb.h"

namespace espalier::onnx_import {

// Where a tensor's bytes lie.
struct ExternalData {
  std::string folder;
  std::string location;  // path relative to the folder
  int64_t offset = 0;
};

// Returns the place of the `size` bytes that the tensor refers to, and checks that they are there.
// Only files below `folder` are accepted: the path must be relative, without "." or "..", and no
// component may be a symbolic link.
absl::StatusOr<ExternalData> FindExternalData(const onnx::TensorProto& tensor,
                                              const std::string& folder, int64_t size);

// Reads `bytes` bytes from `offset` on of the tensor's. Opens the file by the same rules each time,
// because a model may have more of them than a process may keep open.
absl::Status ReadExternalData(const ExternalData& data, int64_t offset, int64_t bytes, char* out);

}  // namespace espalier::onnx_import
