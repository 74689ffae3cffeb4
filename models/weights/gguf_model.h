// Presents a GGUF file (the first of a split model: gguf.h) as a Hugging Face model folder:
// metadata as config.json, tensors under Hugging Face's names, shapes and row order.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "models/weights/weight_files.h"

namespace espalier {

// Supports llama (and Mixtral, which uses that name), qwen2, qwen3, qwen3moe, gemma to gemma3,
// phi3, gpt2, starcoder, falcon and mpt; returns Unimplemented for others. Splits experts, stored
// in one tensor for all or (older files) one each, into single matrices. Returns InvalidArgument,
// by tensor, for tensors that the metadata does not describe.
absl::StatusOr<std::unique_ptr<WeightFiles>> OpenGgufModel(FileSystem& files,
                                                           const std::string& path);
absl::StatusOr<std::string> GgufConfig(FileSystem& files, const std::string& path);

}  // namespace espalier
