// What a model writes into its answers besides text for the parser: thoughts, and calls of tools.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

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

// Splits thoughts from what follows. Blanks around thoughts, and before what follows, are dropped.
class ReasoningParser {
 public:
  ReasoningParser(ReasoningTags marks, bool begins_inside);

  void Append(absl::string_view text, std::string* reasoning, std::string* rest);
  void Finish(std::string* reasoning, std::string* rest);

  // Whether what comes next cannot be a thought.
  bool done() const { return state_ == State::kBehind || state_ == State::kOver; }

 private:
  enum class State { kUndecided, kInside, kBehind, kOver };

  void AppendReasoning(absl::string_view text, std::string* reasoning);

  const ReasoningTags marks_;
  State state_;
  bool has_reasoning_ = false;  // something but blanks
  std::string held_;
};

}  // namespace espalier
