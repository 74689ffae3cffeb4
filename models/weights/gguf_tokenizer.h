// The tokenizer inside a GGUF file, as the files of Hugging Face's libraries that it was made of.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "models/weights/weight_files.h"

namespace espalier {

// tokenizer.ggml.model "gpt2" (byte-level BPE) with tokenizer.ggml.pre falcon, gpt-2, llama-bpe,
// mpt, qwen2, smollm, starcoder or tekken, and "llama" (SentencePiece BPE: its merges are found
// again from the scores, as transformers does). Words are cut as the models' own tokenizer.json has
// it. Texts are empty if the file has no tokenizer. Unimplemented, by name, for other models and
// other ways to cut words; InvalidArgument for what does not fit.
absl::StatusOr<TokenizerTexts> GgufTokenizer(FileSystem& files, const std::string& path);

}  // namespace espalier
