// A folder's safetensors as WeightFiles.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/weights/weight_files.h"

namespace espalier {

// `names` are the folder's files; `stem` is the name of the file or its index. Returns null,
// without an error, if there are no such safetensors.
absl::StatusOr<std::unique_ptr<WeightFiles>> OpenSafetensors(FileSystem& files,
                                                             const std::string& folder,
                                                             const std::vector<std::string>& names,
                                                             const std::string& stem = "model");

}  // namespace espalier
