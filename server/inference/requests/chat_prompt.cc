#include "server/inference/requests/chat_prompt.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/json/bounded_json.h"
#include "server/inference/field_error.h"
#include "server/inference/requests/chat_fields.h"
#include "server/inference/requests/tool_choice.h"
#include "serving/chat_template/plain_chat_template.h"
#include "serving/chat_template/python_string.h"

namespace espalier {
namespace {

using json = nlohmann::ordered_json;

// Error text of serving/chat_template/operators.cc.
constexpr absl::string_view kDictConcatenationError =
    "unsupported operand types for +: 'str' and 'dict'";
constexpr absl::string_view kAssistantNext = "\nassistant:";

ChatMessage PlainTurn(const v1::ChatTurn& turn) {
  if (turn.role() == "developer") return {"system", turn.content()};
  if (turn.role() == "tool") {
    return {"user", absl::StrCat("Result of the call ", turn.tool_call_id(), ": ", turn.content())};
  }
  return {turn.role(), absl::StrCat(turn.content(), turn.tool_calls())};
}

// Returns whether the prompt starts an assistant turn.
bool StartsAssistantTurn(const v1::ChatPrompt& chat) {
  return !chat.continue_final_message() && !chat.no_generation_prompt();
}

absl::StatusOr<json> Parsed(const std::string& text, absl::string_view field) {
  absl::StatusOr<json> value = ParseBoundedJson<json>(text, kRequestJson);
  if (!value.ok()) return FieldError(field, absl::StrCat(field, " ", value.status().message()));
  return value;
}

// Message format that a template expects.
struct MessageFormat {
  bool distinguishes_null = false;  // see TestsForNullContent
  bool text_arguments = false;      // see ConcatenatesArguments
  // The template supports the developer role. Others drop or reject such turns, so they become
  // system turns.
  bool supports_developer = false;
};

// Most templates expect parsed arguments, while the API sends text. Models write nothing for
// functions without parameters. `place`: of the call, for errors.
absl::Status ParseArguments(const std::string& place, bool as_text, json* call) {
  if (!call->is_object() || !call->contains("function")) return absl::OkStatus();
  json& function = (*call)["function"];
  if (!function.is_object() || !function.contains("arguments")) return absl::OkStatus();
  json& arguments = function["arguments"];
  if (!arguments.is_string()) {
    if (as_text) arguments = arguments.dump(-1, ' ', false, json::error_handler_t::replace);
    return absl::OkStatus();
  }
  const std::string text(absl::StripAsciiWhitespace(arguments.get_ref<const std::string&>()));
  absl::StatusOr<json> object = json::object();
  if (!text.empty()) object = Parsed(text, absl::StrCat(place, ".function.arguments"));
  if (!object.ok()) return object.status();
  // Unchanged text gives the same tokens as when the model wrote it.
  arguments = !as_text ? *std::move(object) : json(text.empty() ? "{}" : text);
  return absl::OkStatus();
}

// Returns whether the template concatenates arguments as text, as DeepSeek-R1's does:
// `'\n' + tool['function']['arguments'] + '\n'`. A template that tests for strings or applies a
// filter expects parsed ones.
bool ConcatenatesArguments(absl::string_view source) {
  constexpr absl::string_view kArguments = "arguments";
  constexpr absl::string_view kPath =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.'\"[]";
  const auto joins = [](absl::string_view text) {
    return !text.empty() && (text[0] == '+' || text[0] == '~');
  };
  bool found = false;
  for (size_t at = source.find(kArguments); at != absl::string_view::npos;
       at = source.find(kArguments, at + 1)) {
    absl::string_view before = source.substr(0, at), behind = source.substr(at + kArguments.size());
    const bool subscript = (absl::EndsWith(before, "['") && absl::ConsumePrefix(&behind, "']")) ||
                           (absl::EndsWith(before, "[\"") && absl::ConsumePrefix(&behind, "\"]"));
    if (!subscript && !absl::EndsWith(before, ".")) continue;
    behind = absl::StripLeadingAsciiWhitespace(behind);
    if (absl::StartsWith(behind, "is ")) return false;
    if (joins(behind)) found = true;
    const size_t begin = before.find_last_not_of(kPath);
    before = absl::StripTrailingAsciiWhitespace(
        before.substr(0, begin == absl::string_view::npos ? 0 : begin + 1));
    if (!before.empty() && joins(before.substr(before.size() - 1)) &&
        !absl::StartsWith(behind, "|") && !absl::StartsWith(behind, ".")) {
      found = true;
    }
  }
  return found;
}

// Returns whether the template tests for null content, `message['content'] is none`, as DeepSeek's
// do before calls. Such a template distinguishes null from empty text.
bool TestsForNullContent(absl::string_view source) {
  constexpr absl::string_view kContent = "content";
  for (size_t at = source.find(kContent); at != absl::string_view::npos;
       at = source.find(kContent, at + 1)) {
    absl::string_view behind = source.substr(at + kContent.size());
    behind.remove_prefix(std::min(behind.find_first_not_of("'\")]"), behind.size()));
    if (absl::StartsWith(behind, " is none") || absl::StartsWith(behind, " is not none")) {
      return true;
    }
  }
  return false;
}

// `place`: of the turn, for errors.
absl::StatusOr<json> MessageOf(const v1::ChatTurn& turn, const std::string& place,
                               const MessageFormat& form) {
  json message = {{"role", turn.role()}, {"content", turn.content()}};
  const bool only_calls = turn.content().empty() && !turn.tool_calls().empty();
  if (only_calls && form.distinguishes_null) message["content"] = nullptr;
  // The name in templates; the API accepts another one, too.
  if (!turn.reasoning().empty()) message["reasoning_content"] = turn.reasoning();
  if (!turn.name().empty()) message["name"] = turn.name();
  if (!turn.tool_call_id().empty()) message["tool_call_id"] = turn.tool_call_id();
  if (turn.tool_calls().empty()) return message;
  const std::string field = absl::StrCat(place, ".tool_calls");
  absl::StatusOr<json> calls = Parsed(turn.tool_calls(), field);
  if (!calls.ok()) return calls.status();
  if (!calls->is_array()) return FieldError(field, absl::StrCat(field, " must be a list of calls"));
  for (size_t i = 0; i < calls->size(); ++i) {
    absl::Status status =
        ParseArguments(absl::StrCat(field, "[", i, "]"), form.text_arguments, &(*calls)[i]);
    if (!status.ok()) return status;
  }
  message["tool_calls"] = *std::move(calls);
  return message;
}

absl::StatusOr<json> MessagesOf(const v1::ChatPrompt& chat, const MessageFormat& form) {
  json messages = json::array();
  bool told = false;  // the last turn is a developer's, mapped to system
  for (int i = 0; i < chat.turns_size(); ++i) {
    absl::StatusOr<json> message =
        MessageOf(chat.turns(i), absl::StrCat("messages[", i, "]"), form);
    if (!message.ok()) return message.status();
    const bool developer = !form.supports_developer && chat.turns(i).role() == "developer";
    if (developer) (*message)["role"] = "system";
    // Many templates reject the second of two adjacent system turns: merge them.
    const bool joins = !messages.empty() && messages.back()["role"] == "system" &&
                       messages.back()["content"].is_string() && (*message)["role"] == "system" &&
                       (told || developer);
    told = developer || (told && joins);
    if (!joins) {
      messages.push_back(*std::move(message));
      continue;
    }
    std::string& content = messages.back()["content"].get_ref<std::string&>();
    absl::StrAppend(&content, content.empty() ? "" : "\n\n", chat.turns(i).content());
  }
  return messages;
}

// Sets reasoning effort if the template supports it. Templates with only a thinking switch accept
// "none".
absl::Status SetEffort(const std::string& effort, absl::string_view source, json* variables) {
  if (effort.empty()) return absl::OkStatus();
  const bool off = effort == "none" && absl::StrContains(source, "enable_thinking");
  if (!off && !absl::StrContains(source, "reasoning_effort")) {
    return FieldError("reasoning_effort",
                      absl::StrCat("reasoning_effort is '", effort.substr(0, 40),
                                   "', but the model's chat template ",
                                   absl::StrContains(source, "enable_thinking")
                                       ? "can only think or not; accepted: none, or leave it out"
                                       : "does not ask for it; leave it out"));
  }
  if (off) {
    (*variables)["enable_thinking"] = false;
  } else {
    (*variables)["reasoning_effort"] = effort;
  }
  return absl::OkStatus();
}

// Renders with the model's template. Special tokens are spelled out in the text.
absl::StatusOr<std::string> RenderTemplate(const v1::ChatPrompt& chat, const ChatTemplate& format,
                                           const Clock* clock) {
  ChatRequest request;
  const std::string& source = format.Source(ToolChoiceOf(chat) != ToolChoice::kNone);
  MessageFormat form{.distinguishes_null = TestsForNullContent(source),
                     .text_arguments = ConcatenatesArguments(source),
                     .supports_developer = absl::StrContains(source, "developer")};
  absl::StatusOr<json> messages = MessagesOf(chat, form);
  if (!messages.ok()) return messages.status();
  request.messages = *std::move(messages);
  if (ToolChoiceOf(chat) != ToolChoice::kNone) {
    for (const std::string& tool : chat.tools()) {
      absl::StatusOr<json> parsed = Parsed(tool, "tools");
      if (!parsed.ok()) return parsed.status();
      request.tools.push_back(*std::move(parsed));
    }
  }
  if (!chat.template_arguments().empty()) {
    absl::StatusOr<json> variables = Parsed(chat.template_arguments(), "chat_template_kwargs");
    if (!variables.ok()) return variables.status();
    request.variables = *std::move(variables);
  }
  if (!request.variables.is_object()) request.variables = json::object();
  absl::Status effort =
      SetEffort(chat.reasoning_effort(), format.Source(!request.tools.empty()), &request.variables);
  if (!effort.ok()) return effort;
  request.strftime_now = [clock](const std::string& form) {
    return absl::FormatTime(form, clock->Now(), absl::LocalTimeZone());
  };
  request.add_generation_prompt = StartsAssistantTurn(chat);
  absl::StatusOr<std::string> text = format.Render(request);
  // The template concatenates arguments in a way that its source does not show: retry with text.
  if (!form.text_arguments && absl::StrContains(text.status().message(), kDictConcatenationError)) {
    form.text_arguments = true;
    messages = MessagesOf(chat, form);
    if (!messages.ok()) return messages.status();
    request.messages = *std::move(messages);
    text = format.Render(request);
  }
  if (!text.ok() || !chat.continue_final_message()) return text;
  // Cut after the last message, as transformers does: what the template appends would end it.
  const absl::string_view last =
      absl::StripAsciiWhitespace(chat.turns(chat.turns_size() - 1).content());
  const size_t at = last.empty() ? std::string::npos : jinja::FindLastSubstring(*text, last);
  if (at == std::string::npos) {
    return FieldError(
        "continue_final_message",
        "continue_final_message: the model's template does not write the last message as it is");
  }
  text->resize(at + last.size());
  return text;
}

// Returns whether the answer continues open reasoning.
bool BeginsInReasoning(const v1::ChatPrompt& chat, absl::string_view text,
                       const ReasoningTags& marks) {
  if (!chat.continue_final_message()) return EndsInReasoning(text, marks);
  const std::string& last = chat.turns(chat.turns_size() - 1).content();
  const size_t open = last.rfind(marks.open), close = last.rfind(marks.close);
  return !marks.empty() && open != std::string::npos &&
         (close == std::string::npos || close < open);
}

}  // namespace

absl::StatusOr<Prompt> RenderChat(const v1::ChatPrompt& chat, const Tokenizer& tokenizer,
                                  const ChatTemplate* format, const Clock* clock) {
  for (int i = 0; i < chat.turns_size(); ++i) {
    if (IsChatRole(chat.turns(i).role())) continue;
    const std::string field = absl::StrCat("messages[", i, "].role");
    return FieldError(field, absl::StrCat(field, " is '", chat.turns(i).role().substr(0, 40),
                                          "'; accepted: ", kChatRoles));
  }
  if (const std::string& effort = chat.reasoning_effort();
      !effort.empty() && !IsReasoningEffort(effort)) {
    return FieldError("reasoning_effort",
                      absl::StrCat("reasoning_effort is '", effort.substr(0, 40),
                                   "'; accepted: ", kReasoningEfforts));
  }
  if (chat.continue_final_message() &&
      (chat.turns().empty() || chat.turns(chat.turns_size() - 1).role() != "assistant")) {
    return FieldError("continue_final_message",
                      "continue_final_message: the last message must be the assistant's");
  }
  if (format != nullptr) {
    absl::StatusOr<std::string> text = RenderTemplate(chat, *format, clock);
    if (!text.ok()) return text.status();
    absl::StatusOr<std::vector<int>> tokens = tokenizer.TryEncode(
        *text, {.add_special = chat.add_special_tokens(), .parse_special = true});
    if (!tokens.ok()) return tokens.status();
    const std::string& source = format->Source(ToolChoiceOf(chat) != ToolChoice::kNone);
    Prompt prompt{*std::move(tokens), ReasoningTagsFor(source)};
    prompt.begins_in_reasoning = BeginsInReasoning(chat, *text, prompt.reasoning);
    prompt.tool_parser = &ToolCallParserFor(source);
    return prompt;
  }
  if (!chat.reasoning_effort().empty()) {
    return FieldError("reasoning_effort",
                      "reasoning_effort is for a model's chat template, and this model has none");
  }
  if (!chat.template_arguments().empty()) {
    return FieldError(
        "chat_template_kwargs",
        "chat_template_kwargs are for a model's chat template, and this model has none");
  }
  std::vector<ChatMessage> messages;
  if (ToolChoiceOf(chat) != ToolChoice::kNone) {
    std::string text =
        "To call a tool, answer with a JSON object {\"name\": ..., \"arguments\": {...}}. Tools:";
    for (const std::string& tool : chat.tools()) absl::StrAppend(&text, "\n", tool);
    messages.push_back({"system", text});
  }
  for (const v1::ChatTurn& turn : chat.turns()) messages.push_back(PlainTurn(turn));
  absl::StatusOr<std::string> text = RenderPlainChat(messages);
  if (!text.ok()) return text.status();
  if (!StartsAssistantTurn(chat)) text->resize(text->size() - kAssistantNext.size());
  absl::StatusOr<std::vector<int>> tokens =
      tokenizer.TryEncode(*text, {.add_special = true, .parse_special = false});
  if (!tokens.ok()) return tokens.status();
  return Prompt{*std::move(tokens)};
}

}  // namespace espalier
