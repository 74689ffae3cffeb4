// Converts a GGUF file's tokenizer to Hugging Face's tokenizer.json and tokenizer_config.json.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "models/weights/weight_files.h"

namespace espalier {

// Supports tokenizer.ggml.model "gpt2" (byte-level BPE) with tokenizer.ggml.pre falcon, gpt-2,
// llama-bpe, mpt, qwen2, smollm, starcoder or tekken, and "llama" (SentencePiece BPE; merges are
// rebuilt from scores, as transformers does). Pre-tokenization is that of the models' own
// tokenizer.json. Returns empty texts if the file has no tokenizer, Unimplemented, by name, for
// other models and pre-tokenizers, InvalidArgument for inconsistent data.
absl::StatusOr<TokenizerTexts> GgufTokenizer(FileSystem& files, const std::string& path);

}  // namespace espalier
