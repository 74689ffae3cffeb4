// The chat template of models that have none, such as those trained here: a line "role: content"
// for each message, then "assistant:".
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace espalier {

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

// Returns InvalidArgument if there are no messages, or naming the index of one with an unknown
// role.
absl::StatusOr<std::string> RenderPlainChat(const std::vector<ChatMessage>& messages);

}  // namespace espalier
