// What a model writes into its answers besides text for the parser: thoughts, and calls of tools.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "serving/output_parsers/tool_parser.h"

namespace espalier {

// The marks around thoughts. Empty: the model does not think aloud.
struct ReasoningTags {
  std::string open;
  std::string close;

  bool empty() const { return open.empty(); }
};

// Those that a chat template knows: <think> (Qwen 3, QwQ, DeepSeek R1 and its kin) or [THINK]
// (Magistral).
ReasoningTags ReasoningTagsFor(absl::string_view chat_template);

// Whether a prompt ends within thoughts, so that the answer begins there: its last text, but for
// blanks, is the mark that opens them.
bool EndsInReasoning(absl::string_view prompt, const ReasoningTags& marks);

}  // namespace espalier
