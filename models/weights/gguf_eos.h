// End-of-sequence tokens of a GGUF file. The file has one key for the EOS token; chats end turns
// with others, which llama.cpp finds by further keys and by their spellings.
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

// True if a token of this spelling is a control token that ends generation in every model.
bool IsGgufEosSpelling(absl::string_view spelling);

// Returns sorted ids of EOS tokens: tokenizer.ggml.eos_token_id and related keys, and tokens with a
// known spelling. Ignores keys other than eos_token_id that name no token. Returns InvalidArgument
// for invalid lists.
absl::StatusOr<std::vector<int64_t>> GgufEosIds(const GgufFile& file);

}  // namespace espalier
