// From a conversation to a prompt. Models of our own training have no template of theirs, so there
// is one fixed, plain form: a line "role: content" per message, then "assistant:" for the model to
// go on.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace espalier {

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

// InvalidArgument naming the message by its index: no messages, or an unknown role.
absl::StatusOr<std::string> RenderPlainChat(const std::vector<ChatMessage>& messages);

}  // namespace espalier
