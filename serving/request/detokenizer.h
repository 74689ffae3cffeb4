// Incremental detokenization of an output after its prompt. Decoded alone, it would be taken for
// the start of a text, where some decoders drop a leading space: " Paris" after "The capital of
// France is".
#pragma once

#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "serving/tokenizer/tokenizer.h"

namespace espalier {

// As Tokenizer::NewStreamDecoder, continuing after `prompt`. After a special token, as at the end
// of most chat prompts, and after an end of sequence a new text starts. `tokenizer` must outlive
// the result.
std::unique_ptr<StreamDecoder> NewDetokenizer(const Tokenizer& tokenizer,
                                              absl::Span<const int> prompt, bool show_special,
                                              const std::vector<int>& shown);

}  // namespace espalier
