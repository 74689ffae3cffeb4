// Renders a chat into a model's prompt.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "espalier/v1/inference.pb.h"
#include "serving/chat_template/chat_template.h"
#include "serving/output_parsers/reasoning_parser.h"
#include "serving/output_parsers/tool_call_parser.h"
#include "serving/tokenizer/tokenizer.h"

namespace espalier {

struct Prompt {
  std::vector<int> tokens;
  // For chats: how to parse the output.
  ReasoningTags reasoning;  // empty: not a reasoning model
  bool begins_in_reasoning = false;
  const ToolCallParser* tool_parser = &HermesToolCallParser();
};

// Renders with the model's template `format`, or, if it is null, with
// serving/chat_template/plain_chat_template.h, where tools become a system turn and calls and their
// results plain text. Returns InvalidArgument naming the turn or field, or the template's error.
// `clock` serves templates that ask for the date.
absl::StatusOr<Prompt> RenderChat(const v1::ChatPrompt& chat, const Tokenizer& tokenizer,
                                  const ChatTemplate* format, const Clock* clock);

}  // namespace espalier
