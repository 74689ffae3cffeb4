#include "server/inference/chat_prompt.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "serving/tokenizer/chat_template.h"

namespace espalier {
namespace {

constexpr absl::string_view kAssistantNext = "\nassistant:";

ChatMessage PlainTurn(const proto::ChatTurn& turn) {
  if (turn.role() == "developer") return {"system", turn.content()};
  if (turn.role() == "tool") {
    return {"user", absl::StrCat("Result of the call ", turn.tool_call_id(), ": ", turn.content())};
  }
  return {turn.role(), absl::StrCat(turn.content(), turn.tool_calls())};
}

}  // namespace

absl::StatusOr<std::vector<int>> RenderChat(const proto::ChatPrompt& chat,
                                            const Tokenizer& tokenizer) {
  if (!chat.template_arguments().empty()) {
    return absl::InvalidArgumentError(
        "chat_template_kwargs are for a model's chat template, and this model has none");
  }
  std::vector<ChatMessage> messages;
  if (!chat.tools().empty()) {
    std::string text =
        "To call a tool, answer with a JSON object {\"name\": ..., \"arguments\": {...}}. Tools:";
    for (const std::string& tool : chat.tools()) absl::StrAppend(&text, "\n", tool);
    messages.push_back({"system", text});
  }
  for (const proto::ChatTurn& turn : chat.turns()) messages.push_back(PlainTurn(turn));
  absl::StatusOr<std::string> text = RenderPlainChat(messages);
  if (!text.ok()) return text.status();
  if (chat.continue_final_message()) {
    if (messages.back().role != "assistant") {
      return absl::InvalidArgumentError(
          "continue_final_message: the last message must be the assistant's");
    }
    text->resize(text->size() - kAssistantNext.size());
  }
  return tokenizer.TryEncode(*text, {.add_special = true, .parse_special = false});
}

}  // namespace espalier
