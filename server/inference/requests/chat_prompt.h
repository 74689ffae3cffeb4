// From a conversation to a model's prompt.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/inference.pb.h"
#include "base/clock.h"
#include "serving/output_parsers/reasoning_parser.h"
#include "serving/output_parsers/tool_call_parser.h"
#include "serving/chat_template/chat_template.h"
#include "serving/tokenizer/tokenizer.h"

namespace espalier {

struct Prompt {
  std::vector<int> tokens;
  // Of chats: how the answer is to be read.
  ReasoningTags reasoning;  // empty: the model does not think aloud
  bool begins_in_reasoning = false;
  const ToolCallParser* tool_parser = &HermesToolCallParser();
};

// InvalidArgument naming the turn or the field; errors of the model's own template. Without one
// (`format` is null): the plain form of serving/chat_template/plain_chat_template.h; tools become a system
// turn that describes them, calls and their results plain text. `clock` is for templates that ask
// for the date.
absl::StatusOr<Prompt> RenderChat(const v1::ChatPrompt& chat, const Tokenizer& tokenizer,
                                  const ChatTemplate* format, const Clock* clock);

}  // namespace espalier
