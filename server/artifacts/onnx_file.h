// The model file of an ONNX artifact.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace espalier {

// Returns the only file, or else the only one that ends in .onnx: files with its tensors may lie
// next to it. InvalidArgument, which does not name the artifact, if there is no such file.
absl::StatusOr<std::string> OnnxFileAmong(const std::vector<std::string>& files);

}  // namespace espalier
