// The prompts that distillation starts from, as tokens of the LLM.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "serving/tokenizer/tokenizer.h"

namespace espalier {

struct PromptLimits {
  int max_tokens = 32;    // of a prompt; longer ones lose their first tokens
  int max_prompts = 512;  // the first ones of a list; evenly spaced ones of a text
};

// Parses a JSON list of texts. Returns InvalidArgument for any other JSON, for an empty list, and,
// with the index, for a text without tokens.
absl::StatusOr<std::vector<std::vector<int>>> PromptsOfList(absl::string_view json,
                                                            const Tokenizer& tokenizer,
                                                            const PromptLimits& limits);

// Cuts max_prompts, or as many as fit without overlap, evenly spaced pieces of max_tokens tokens
// out of a text. Returns InvalidArgument if the text has fewer tokens than one piece.
absl::StatusOr<std::vector<std::vector<int>>> PromptsOfText(absl::string_view text,
                                                            const Tokenizer& tokenizer,
                                                            const PromptLimits& limits);

}  // namespace espalier
