// The text of an answer as it goes on behind its prompt. By itself it would be read as a text's
// beginning, from where some decoders take a blank away: "Paris" behind "The capital of France is".
#pragma once

#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "serving/tokenizer/tokenizer.h"

namespace espalier {

// As Tokenizer::NewStreamDecoder, behind these tokens. Behind a special token, as most chats'
// prompts end, and behind an end of sequence a new text begins. `tokenizer` must outlive it.
std::unique_ptr<StreamDecoder> NewDetokenizer(const Tokenizer& tokenizer,
                                                absl::Span<const int> prompt, bool show_special,
                                                const std::vector<int>& shown);

}  // namespace espalier
