// Which tokens end an answer, of those in a GGUF file. The file has a key for one of them, but
// chats end their turns with others, which llama.cpp knows by further keys and by their spellings.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/weights/gguf.h"

namespace espalier {

// tokenizer.ggml.token_type.
enum GgufTokenType {
  kGgufNormal = 1,
  kGgufUnknown = 2,
  kGgufControl = 3,
  kGgufUserDefined = 4,
  kGgufUnused = 5,
  kGgufByte = 6
};

// Whether a token of this spelling is for control in whatever model has it, and ends an answer.
bool IsGgufEosSpelling(absl::string_view spelling);

// Their ids, sorted: tokenizer.ggml.eos_token_id and its like, and those that are spelled so. Other
// keys than eos_token_id are passed over where they name no token. InvalidArgument for lists that
// cannot be read.
absl::StatusOr<std::vector<int64_t>> GgufEosIds(const GgufFile& file);

}  // namespace espalier
