#include "server/http/openai_chat.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"

namespace espalier::openai {
namespace {

using json = nlohmann::ordered_json;

constexpr size_t kMaxMessages = 4096;
constexpr size_t kMaxTools = 128;

// A string, or parts of type text.
bool ReadContent(const json& content, std::string* out) {
  if (content.is_string()) {
    *out = content.get<std::string>();
    return true;
  }
  if (!content.is_array()) return false;
  for (const json& part : content) {
    if (!part.is_object() || part.value("type", json()) != "text" || !part.contains("text") ||
        !part["text"].is_string()) {
      return false;
    }
    *out += part["text"].get<std::string>();
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

void ReadMessage(const json& message, const std::string& place, JsonReader& outer,
                 proto::ChatTurn* turn) {
  if (!message.is_object()) {
    outer.Fail("messages", absl::StrCat(place, " must be an object with a string 'role'"));
    return;
  }
  JsonReader reader(message, place + ".");
  reader.String("role", true, turn->mutable_role());
  static const std::set<std::string>& roles =
      *new std::set<std::string>{"system", "developer", "user", "assistant", "tool"};
  if (!reader.error() && roles.count(turn->role()) == 0) {
    reader.Fail("role",
                absl::StrCat(place, ".role must be system, developer, user, assistant or tool"));
  }
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
  const json* content = reader.Find("content");
  if (content == nullptr) {
    if (turn->tool_calls().empty()) {
      reader.Fail("content", absl::StrCat(place, ".content must be a string"));
    }
  } else if (!ReadContent(*content, turn->mutable_content())) {
    reader.Fail("content",
                absl::StrCat(place, ".content must be a string or a list of parts of type text"));
  }
  // Thoughts, by DeepSeek's name and by OpenRouter's.
  for (const char* name : {"reasoning_content", "reasoning"}) {
    std::string thoughts;
    reader.String(name, false, &thoughts);
    if (!thoughts.empty() && turn->role() != "assistant") {
      reader.Fail(name, absl::StrCat(place, ".", name, " must be the assistant's"));
    }
    if (!thoughts.empty()) turn->set_reasoning(thoughts);
  }
  // What answers of this API carry, given back unchanged.
  reader.Unsupported("refusal", [](const json& v) { return v == ""; });
  reader.Unsupported("function_call", [](const json& v) { return v.empty(); });
  reader.Unsupported("audio", [](const json& v) { return v.empty(); });
  reader.Unsupported("annotations", [](const json& v) { return v.empty(); });
  reader.RefuseUnknown();
  if (reader.error()) outer.Fail("messages", reader.error()->message);
}

// Adds its name and its text.
bool ReadTool(const json& tool, const std::string& place, JsonReader& outer,
              std::set<std::string>* names, proto::ChatPrompt* chat) {
  const json function = tool.is_object() ? tool.value("function", json()) : json();
  if (!function.is_object() || tool.value("type", json()) != "function") {
    outer.Fail("tools", absl::StrCat(place, " must have the type function and a 'function'"));
    return false;
  }
  JsonReader reader(function, place + ".function.");
  std::string name, description;
  reader.String("name", true, &name);
  reader.String("description", false, &description);
  const json* parameters = reader.Find("parameters");
  if (parameters != nullptr && !parameters->is_object()) {
    reader.Fail("parameters", absl::StrCat(place, ".function.parameters must be a JSON schema"));
  }
  bool strict = false;
  reader.Bool("strict", &strict);
  reader.RefuseUnknown();
  if (!reader.error() && name.empty()) {
    reader.Fail("name", absl::StrCat(place, ".function.name is empty"));
  }
  names->insert(name);
  chat->add_tools(Dump(tool));
  if (reader.error()) outer.Fail("tools", reader.error()->message);
  return !reader.error();
}

void ReadToolChoice(JsonReader& reader, const std::set<std::string>& names,
                    proto::ChatPrompt* chat) {
  const json* choice = reader.Find("tool_choice");
  if (choice == nullptr || *choice == "auto") return;
  if (*choice == "none") {
    chat->set_tool_choice(proto::TOOL_CHOICE_NONE);
    return;
  }
  if (*choice == "required") {
    chat->set_tool_choice(proto::TOOL_CHOICE_REQUIRED);
  } else if (choice->is_object() && choice->value("function", json()).is_object() &&
             (*choice)["function"].value("name", json()).is_string()) {
    chat->set_tool_choice(proto::TOOL_CHOICE_NAMED);
    chat->set_named_tool((*choice)["function"]["name"].get<std::string>());
    if (names.count(chat->named_tool()) == 0) {
      reader.Fail("tool_choice",
                  absl::StrCat("field 'tool_choice' names '", chat->named_tool().substr(0, 100),
                               "', which is none of the tools"));
    }
  } else {
    reader.Fail("tool_choice",
                "field 'tool_choice' must be none, auto, required, or an object that names a "
                "function");
  }
  if (names.empty()) {
    reader.Fail("tool_choice", "field 'tool_choice' wants a call, but there are no 'tools'");
  }
}

}  // namespace

void ReadMessages(JsonReader& reader, proto::ChatPrompt* chat) {
  const json* messages = reader.Find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty() ||
      messages->size() > kMaxMessages) {
    reader.Fail("messages", "field 'messages' must be a list of 1 to 4096 messages");
    return;
  }
  for (size_t i = 0; i < messages->size(); ++i) {
    ReadMessage((*messages)[i], absl::StrCat("messages[", i, "]"), reader, chat->add_turns());
  }
}

void ReadTools(JsonReader& reader, proto::ChatPrompt* chat) {
  const json* tools = reader.Find("tools");
  if (tools != nullptr && (!tools->is_array() || tools->size() > kMaxTools)) {
    reader.Fail("tools", "field 'tools' must be a list of at most 128 tools");
    return;
  }
  std::set<std::string> names;
  for (size_t i = 0; tools != nullptr && i < tools->size(); ++i) {
    if (!ReadTool((*tools)[i], absl::StrCat("tools[", i, "]"), reader, &names, chat)) return;
  }
  bool parallel = true;
  reader.Bool("parallel_tool_calls", &parallel);
  chat->set_single_tool_call(!parallel);
  ReadToolChoice(reader, names, chat);
}

void ReadReasoning(JsonReader& reader, Request* request) {
  proto::ChatPrompt* chat = request->generate.mutable_chat();
  reader.Bool("include_reasoning", &request->include_reasoning);
  reader.String("reasoning_effort", false, chat->mutable_reasoning_effort());
  static const std::set<std::string>& efforts =
      *new std::set<std::string>{"", "none", "minimal", "low", "medium", "high", "xhigh", "max"};
  if (efforts.count(chat->reasoning_effort()) == 0) {
    reader.Fail("reasoning_effort",
                "field 'reasoning_effort' must be none, minimal, low, medium, high, xhigh or max");
  }
  // llama.cpp's name for where thoughts go.
  std::string format;
  reader.String("reasoning_format", false, &format);
  chat->set_reasoning_in_text(format == "none");
  if (!format.empty() && format != "none" && format != "auto" && format != "deepseek") {
    reader.Fail("reasoning_format", "field 'reasoning_format' must be none, auto or deepseek");
  }
}

}  // namespace espalier::openai
