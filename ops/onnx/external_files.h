// Names the files beside an ONNX file that hold its weights.
#pragma once

#include <set>
#include <string>

#include "absl/status/statusor.h"

namespace espalier {

// Returns the locations of external data as the file writes them: paths relative to its folder.
// InvalidArgument if `bytes` is no complete ONNX model.
absl::StatusOr<std::set<std::string>> ExternalFilesOf(const std::string& bytes);

}  // namespace espalier
