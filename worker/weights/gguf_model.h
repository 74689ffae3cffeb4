// A GGUF file as a model's folder: its metadata as a config.json, its tensors under Hugging Face's
// names, in Hugging Face's order of rows.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/weights/weight_files.h"

namespace espalier {

// Architectures llama, qwen2 and qwen3. Unimplemented for others, and for mixtures of experts.
absl::StatusOr<std::unique_ptr<WeightFiles>> OpenGgufModel(FileSystem& files,
                                                           const std::string& path);
absl::StatusOr<std::string> GgufConfig(FileSystem& files, const std::string& path);

}  // namespace espalier
