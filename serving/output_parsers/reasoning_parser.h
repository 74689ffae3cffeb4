// Splits the reasoning ("thinking") of a model from the answer that follows it.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace espalier {

// The tags around reasoning. Empty if the model does not reason aloud.
struct ReasoningTags {
  std::string open;
  std::string close;

  bool empty() const { return open.empty(); }
};

// Returns the tags that a chat template uses: <think> (Qwen 3, QwQ, DeepSeek R1 and models
// distilled from it) or [THINK] (Magistral).
ReasoningTags ReasoningTagsFor(absl::string_view chat_template);

// Whether a prompt ends with the opening tag, trailing whitespace aside, so that the answer begins
// inside the reasoning.
bool EndsInReasoning(absl::string_view prompt, const ReasoningTags& tags);

// Streams text into reasoning and rest. Drops whitespace around the reasoning and before the rest.
class ReasoningParser {
 public:
  ReasoningParser(ReasoningTags tags, bool begins_inside);

  // Appends to *reasoning and *rest what is certain after `text`.
  void Append(absl::string_view text, std::string* reasoning, std::string* rest);
  // Appends what was held back. Call once, at the end of the answer.
  void Finish(std::string* reasoning, std::string* rest);

  // Whether no more reasoning can follow.
  bool done() const { return state_ == State::kAfter || state_ == State::kDone; }

 private:
  enum class State { kUndecided, kInside, kAfter, kDone };

  void AppendReasoning(absl::string_view text, std::string* reasoning);

  const ReasoningTags tags_;
  State state_;
  bool has_reasoning_ = false;  // something other than whitespace
  std::string buffer_;
};

}  // namespace espalier
