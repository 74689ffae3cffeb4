// A GGUF file (the first, of several: gguf.h) as a model's folder: its metadata as a config.json,
// its tensors under Hugging Face's names, in Hugging Face's shapes and order of rows.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "models/weights/weight_files.h"

namespace espalier {

// Architectures llama (and Mixtral, which goes by that name), qwen2, qwen3, qwen3moe, gemma to
// gemma3, phi3, gpt2, starcoder, falcon and mpt; Unimplemented for others. Experts, which lie in
// one tensor for all of them or (older files) in one for each, become matrices of their own.
// InvalidArgument, by tensor, for those that the metadata does not describe.
absl::StatusOr<std::unique_ptr<WeightFiles>> OpenGgufModel(FileSystem& files,
                                                           const std::string& path);
absl::StatusOr<std::string> GgufConfig(FileSystem& files, const std::string& path);

}  // namespace espalier
