// The prompts that boost-tuning starts from, as tokens of the LLM.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "serving/tokenizer/tokenizer.h"

namespace espalier {

struct PromptLimits {
  int max_tokens = 32;    // of a prompt; longer ones lose their first tokens
  int max_prompts = 512;  // the first ones of a list, evenly spread ones of a text
};

// A JSON list of texts. InvalidArgument for anything else, for an empty list, and by index for a
// text without tokens.
absl::StatusOr<std::vector<std::vector<int>>> PromptsOfList(absl::string_view json,
                                                            const Tokenizer& tokenizer,
                                                            const PromptLimits& limits);

// Pieces of max_tokens tokens at even distances; as many as fit side by side, at most max_prompts.
// InvalidArgument if the text has not tokens for one.
absl::StatusOr<std::vector<std::vector<int>>> PromptsOfText(absl::string_view text,
                                                            const Tokenizer& tokenizer,
                                                            const PromptLimits& limits);

}  // namespace espalier
