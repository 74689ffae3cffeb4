#include "server/http/openai_chat.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/http/openai_sampling.h"
#include "server/inference/requests/chat_fields.h"

namespace espalier::openai {
namespace {

using json = nlohmann::ordered_json;

// Accepts a string or parts of type text. An assistant's refusal counts as text.
bool ReadContent(const json& content, bool assistant, std::string* out) {
  if (content.is_string()) {
    *out = content.get<std::string>();
    return true;
  }
  if (!content.is_array()) return false;
  for (const json& part : content) {
    if (!part.is_object()) return false;
    const json type = part.value("type", json());
    if (type != "text" && !(assistant && type == "refusal")) return false;
    const json text = part.value(type.get_ref<const std::string&>(), json());
    if (!text.is_string()) return false;
    *out += text.get_ref<const std::string&>();
  }
  return true;
}

bool AreToolCalls(const json& calls) {
  if (!calls.is_array() || calls.empty()) return false;
  return std::all_of(calls.begin(), calls.end(), [](const json& call) {
    if (!call.is_object() || !call.value("function", json()).is_object()) return false;
    const json& function = call["function"];
    return function.value("name", json()).is_string() &&
           function.value("arguments", json()).is_string();
  });
}

void ReadMessage(JsonReader& reader, const std::string& place, v1::ChatTurn* turn) {
  reader.String("name", false, turn->mutable_name());
  reader.String("tool_call_id", turn->role() == "tool", turn->mutable_tool_call_id());
  if (const json* calls = reader.Find("tool_calls"); calls != nullptr && !calls->empty()) {
    if (turn->role() != "assistant" || !AreToolCalls(*calls)) {
      reader.Fail("tool_calls", absl::StrCat(place,
                                             ".tool_calls must be the assistant's, each with a "
                                             "function of a name and arguments as strings"));
    } else {
      turn->set_tool_calls(Dump(*calls));
    }
  }
  // DeepSeek's and OpenRouter's names for reasoning.
  for (const char* name : {"reasoning_content", "reasoning"}) {
    std::string thoughts;
    reader.String(name, false, &thoughts);
    if (!thoughts.empty() && turn->role() != "assistant") {
      reader.Fail(name, absl::StrCat(place, ".", name, " must be the assistant's"));
    }
    if (!thoughts.empty()) turn->set_reasoning(thoughts);
  }
  std::string refusal;
  reader.String("refusal", false, &refusal);
  if (!refusal.empty() && turn->role() != "assistant") {
    reader.Fail("refusal", absl::StrCat(place, ".refusal must be the assistant's"));
  }
  const json* content = reader.Find("content");
  if (content == nullptr) {
    // Content may be null in assistant turns with calls, reasoning or a refusal.
    if (turn->tool_calls().empty() && turn->reasoning().empty() && refusal.empty()) {
      reader.Fail("content", absl::StrCat(place, ".content must be a string"));
    }
  } else if (!ReadContent(*content, turn->role() == "assistant", turn->mutable_content())) {
    reader.Fail("content",
                absl::StrCat(place, ".content must be a string or a list of parts of type text"));
  }
  turn->mutable_content()->append(refusal);
  // Fields of this API's answers that clients send back unchanged.
  reader.Unsupported("function_call", [](const json& v) { return v.empty(); });
  reader.Unsupported("audio", [](const json& v) { return v.empty(); });
  reader.Unsupported("annotations", [](const json& v) { return v.empty(); });
}

// Returns the functions in a list of allowed tools; each must be one of `names`.
std::vector<std::string> ReadAllowed(const json& tools, const std::vector<std::string>& names,
                                     const FunctionName& name_of, JsonReader& reader) {
  std::vector<std::string> allowed;
  if (!tools.is_array() || tools.empty()) {
    reader.Fail("tool_choice", "field 'tool_choice' must list at least one allowed tool");
    return allowed;
  }
  for (const json& tool : tools) {
    const std::optional<std::string> name = name_of(tool);
    if (!name || std::find(names.begin(), names.end(), *name) == names.end()) {
      reader.Fail("tool_choice",
                  absl::StrCat("field 'tool_choice' allows '", name.value_or("").substr(0, 100),
                               "', which is none of the tools"));
      return allowed;
    }
    allowed.push_back(*name);
  }
  return allowed;
}

void KeepTools(const std::vector<std::string>& allowed, const std::vector<std::string>& names,
               v1::ChatPrompt* chat) {
  for (int i = static_cast<int>(names.size()) - 1; i >= 0; --i) {
    if (std::find(allowed.begin(), allowed.end(), names[i]) == allowed.end()) {
      chat->mutable_tools()->DeleteSubrange(i, 1);
    }
  }
}

// Extracts NAME from {"type": "function", "function": {"name": NAME}}.
std::optional<std::string> WrappedName(const json& tool) {
  if (!tool.is_object() || !tool.value("function", json()).is_object() ||
      !tool["function"].value("name", json()).is_string()) {
    return std::nullopt;
  }
  return tool["function"]["name"].get<std::string>();
}

}  // namespace

void ReadMessages(JsonReader& reader, v1::ChatPrompt* chat) {
  const json* messages = reader.Find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty() ||
      messages->size() > kMaxMessages) {
    reader.Fail("messages", "field 'messages' must be a list of 1 to 4096 messages");
    return;
  }
  ReadMessageList(*messages, reader, ReadMessage, chat);
}

void ReadMessageList(const json& messages, JsonReader& outer, const MessageReader& read,
                     v1::ChatPrompt* chat) {
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string place = absl::StrCat("messages[", i, "]");
    if (!messages[i].is_object()) {
      outer.Fail("messages", absl::StrCat(place, " must be an object with a string 'role'"));
      return;
    }
    v1::ChatTurn* const turn = chat->add_turns();
    JsonReader reader(messages[i], place + ".");
    reader.String("role", true, turn->mutable_role());
    if (!reader.error() && !IsChatRole(turn->role())) {
      reader.Fail("role", absl::StrCat(place, ".role must be ", kChatRoles));
    }
    read(reader, place, turn);
    reader.RefuseUnknown();
    if (reader.error()) outer.Fail("messages", reader.error()->message);
  }
}

bool AddFunction(const json& function, const std::string& text, const std::string& place,
                 JsonReader& outer, std::vector<std::string>* names, v1::ChatPrompt* chat) {
  JsonReader reader(function, place + ".");
  std::string name, description;
  reader.String("name", true, &name);
  reader.String("description", false, &description);
  const json* parameters = reader.Find("parameters");
  if (parameters != nullptr && !parameters->is_object()) {
    reader.Fail("parameters", absl::StrCat(place, ".parameters must be a JSON schema"));
  }
  bool strict = false;
  reader.Bool("strict", &strict);
  reader.RefuseUnknown();
  if (!reader.error() && name.empty()) {
    reader.Fail("name", absl::StrCat(place, ".name is empty"));
  }
  names->push_back(std::move(name));
  chat->add_tools(text);
  if (reader.error()) outer.Fail("tools", reader.error()->message);
  return !reader.error();
}

void ReadToolChoice(JsonReader& reader, const std::vector<std::string>& names,
                    const FunctionName& name_of, v1::ChatPrompt* chat) {
  const json* choice = reader.Find("tool_choice");
  if (choice == nullptr || *choice == "auto") return;
  if (*choice == "none") {
    chat->set_tool_choice(v1::TOOL_CHOICE_NONE);
    return;
  }
  if (names.empty()) {
    reader.Fail("tool_choice", "field 'tool_choice' wants a call, but there are no 'tools'");
    return;
  }
  if (*choice == "required") {
    chat->set_tool_choice(v1::TOOL_CHOICE_REQUIRED);
    return;
  }
  if (choice->is_object() && choice->value("type", json()) == "allowed_tools") {
    // Chat completions nest the list in "allowed_tools", the Responses API does not.
    const json inner = choice->value("allowed_tools", *choice);
    const json mode = inner.is_object() ? inner.value("mode", json("auto")) : json();
    if (mode != "auto" && mode != "required") {
      reader.Fail("tool_choice", "field 'tool_choice' must have the mode auto or required");
      return;
    }
    KeepTools(ReadAllowed(inner.value("tools", json()), names, name_of, reader), names, chat);
    if (mode == "required") chat->set_tool_choice(v1::TOOL_CHOICE_REQUIRED);
    return;
  }
  const std::optional<std::string> named = name_of(*choice);
  if (!named) {
    reader.Fail("tool_choice",
                "field 'tool_choice' must be none, auto, required, or an object that names a "
                "function or the allowed_tools");
    return;
  }
  chat->set_tool_choice(v1::TOOL_CHOICE_NAMED);
  chat->set_named_tool(*named);
  if (std::find(names.begin(), names.end(), *named) == names.end()) {
    reader.Fail("tool_choice", absl::StrCat("field 'tool_choice' names '", named->substr(0, 100),
                                            "', which is none of the tools"));
  }
}

void ReadToolList(JsonReader& reader,
                  const std::function<void(const json& tool, const std::string& place)>& read) {
  const json* tools = reader.Find("tools");
  if (tools == nullptr) return;
  if (!tools->is_array() || tools->size() > kMaxTools) {
    reader.Fail("tools", "field 'tools' must be a list of at most 128 tools");
    return;
  }
  for (size_t i = 0; i < tools->size() && !reader.error(); ++i) {
    read((*tools)[i], absl::StrCat("tools[", i, "]"));
  }
}

void ReadTools(JsonReader& reader, v1::ChatPrompt* chat) {
  std::vector<std::string> names;
  ReadToolList(reader, [&](const json& tool, const std::string& place) {
    const json function = tool.is_object() ? tool.value("function", json()) : json();
    if (!function.is_object() || tool.value("type", json()) != "function") {
      reader.Fail("tools", absl::StrCat(place, " must have the type function and a 'function'"));
      return;
    }
    AddFunction(function, Dump(tool), place + ".function", reader, &names, chat);
  });
  bool parallel = true;
  reader.Bool("parallel_tool_calls", &parallel);
  chat->set_single_tool_call(!parallel);
  ReadToolChoice(reader, names, WrappedName, chat);
}

void ReadEffort(JsonReader& reader, const std::string& field, v1::ChatPrompt* chat) {
  reader.String(field, false, chat->mutable_reasoning_effort());
  const std::string& effort = chat->reasoning_effort();
  if (!effort.empty() && !IsReasoningEffort(effort)) {
    reader.Fail(field, absl::StrCat("field '", field, "' must be ", kReasoningEfforts));
  }
}

void ReadTemplateArguments(JsonReader& reader, v1::ChatPrompt* chat) {
  // Off by default, unlike for texts: chat templates write special tokens themselves.
  bool add_special = false;
  reader.Bool("add_special_tokens", &add_special);
  chat->set_add_special_tokens(add_special);
  const json* arguments = reader.Find("chat_template_kwargs");
  if (arguments == nullptr) return;
  if (!arguments->is_object()) {
    reader.Fail("chat_template_kwargs", "field 'chat_template_kwargs' must be an object");
  } else if (!arguments->empty()) {
    chat->set_template_arguments(Dump(*arguments));
  }
}

void ReadReasoning(JsonReader& reader, Request* request) {
  v1::ChatPrompt* chat = request->generate.mutable_chat();
  reader.Bool("include_reasoning", &request->include_reasoning);
  ReadEffort(reader, "reasoning_effort", chat);
  int budget = -1;
  reader.Integer("thinking_token_budget", 0, kMaxTokensLimit, &budget);
  if (budget >= 0) chat->set_thinking_token_budget(budget);
  // llama.cpp's name for where reasoning goes.
  std::string format;
  reader.String("reasoning_format", false, &format);
  chat->set_reasoning_in_text(format == "none");
  if (!format.empty() && format != "none" && format != "auto" && format != "deepseek") {
    reader.Fail("reasoning_format", "field 'reasoning_format' must be none, auto or deepseek");
  }
}

}  // namespace espalier::openai
