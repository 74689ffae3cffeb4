#include "serving/chat_template/plain_chat_template.h"

#include "absl/strings/str_cat.h"

namespace espalier {

absl::StatusOr<std::string> RenderPlainChat(const std::vector<ChatMessage>& messages) {
  if (messages.empty()) {
    return absl::InvalidArgumentError("messages is empty, expected at least one message");
  }
  std::string prompt;
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant") {
      return absl::InvalidArgumentError(absl::StrCat("messages[", i, "].role is \"", role,
                                                     "\", expected system, user or assistant"));
    }
    absl::StrAppend(&prompt, role, ": ", messages[i].content, "\n");
  }
  return prompt + "assistant:";
}

}  // namespace espalier
