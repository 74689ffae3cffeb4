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
  // What answers of this API carry, given back unchanged.
  reader.Unsupported("refusal", [](const json& v) { return v == ""; });
  reader.Unsupported("function_call", [](const json& v) { return v.empty(); });
  reader.Unsupported("audio", [](const json& v) { return v.empty(); });
  reader.Unsupported("annotations", [](const json& v) { return v.empty(); });
  reader.RefuseUnknown();
  if (reader.error()) outer.Fail("messages", reader.error()->message);
}

bool ReadTool(const json& tool, const std::string& place, JsonReader& outer, Tool* out) {
  const json function = tool.is_object() ? tool.value("function", json()) : json();
  if (!function.is_object() || tool.value("type", json()) != "function") {
    outer.Fail("tools", absl::StrCat(place, " must have the type function and a 'function'"));
    return false;
  }
  JsonReader reader(function, place + ".function.");
  reader.String("name", true, &out->name);
  std::string description;
  reader.String("description", false, &description);
  const json* parameters = reader.Find("parameters");
  if (parameters != nullptr && !parameters->is_object()) {
    reader.Fail("parameters", absl::StrCat(place, ".function.parameters must be a JSON schema"));
  }
  out->parameters = parameters != nullptr ? Dump(*parameters) : R"({"type":"object"})";
  bool strict = false;
  reader.Bool("strict", &strict);
  reader.RefuseUnknown();
  if (!reader.error() && out->name.empty()) {
    reader.Fail("name", absl::StrCat(place, ".function.name is empty"));
  }
  out->json = Dump(tool);
  if (reader.error()) outer.Fail("tools", reader.error()->message);
  return !reader.error();
}

void ReadToolChoice(JsonReader& reader, Request* request) {
  const json* choice = reader.Find("tool_choice");
  request->tool_choice = request->tools.empty() ? ToolChoice::kNone : ToolChoice::kAuto;
  if (choice == nullptr || *choice == "auto") return;
  if (*choice == "none") {
    request->tool_choice = ToolChoice::kNone;
    return;
  }
  if (*choice == "required") {
    request->tool_choice = ToolChoice::kRequired;
  } else if (choice->is_object() && choice->value("function", json()).is_object() &&
             (*choice)["function"].value("name", json()).is_string()) {
    request->tool_choice = ToolChoice::kNamed;
    request->named_tool = (*choice)["function"]["name"].get<std::string>();
    const bool known =
        std::any_of(request->tools.begin(), request->tools.end(),
                    [&](const Tool& tool) { return tool.name == request->named_tool; });
    if (!known) {
      reader.Fail("tool_choice",
                  absl::StrCat("field 'tool_choice' names '", request->named_tool.substr(0, 100),
                               "', which is none of the tools"));
    }
  } else {
    reader.Fail("tool_choice",
                "field 'tool_choice' must be none, auto, required, or an object that names a "
                "function");
  }
  if (request->tools.empty()) {
    reader.Fail("tool_choice", "field 'tool_choice' wants a call, but there are no 'tools'");
  }
}

// The schema of a call that must be made.
std::string CallSchema(const Request& request) {
  if (request.tool_choice == ToolChoice::kNamed) {
    for (const Tool& tool : request.tools) {
      if (tool.name == request.named_tool) return tool.parameters;
    }
  }
  json calls = json::array();
  for (const Tool& tool : request.tools) {
    json call = {{"type", "object"},
                 {"properties",
                  {{"name", {{"const", tool.name}}}, {"arguments", json::parse(tool.parameters)}}},
                 {"required", {"name", "arguments"}}};
    calls.push_back(std::move(call));
  }
  json schema = {{"type", "array"}, {"items", {{"anyOf", std::move(calls)}}}, {"minItems", 1}};
  if (!request.parallel_tool_calls) schema["maxItems"] = 1;
  return schema.dump();
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

void ReadTools(JsonReader& reader, Request* request) {
  const json* tools = reader.Find("tools");
  if (tools != nullptr && (!tools->is_array() || tools->size() > kMaxTools)) {
    reader.Fail("tools", "field 'tools' must be a list of at most 128 tools");
    return;
  }
  for (size_t i = 0; tools != nullptr && i < tools->size(); ++i) {
    Tool tool;
    if (!ReadTool((*tools)[i], absl::StrCat("tools[", i, "]"), reader, &tool)) return;
    request->tools.push_back(std::move(tool));
  }
  reader.Bool("parallel_tool_calls", &request->parallel_tool_calls);
  ReadToolChoice(reader, request);
  if (reader.error() || request->tool_choice == ToolChoice::kNone) return;
  for (const Tool& tool : request->tools) {
    request->generate.mutable_chat()->add_tools(tool.json);
  }
  if (request->tool_choice == ToolChoice::kAuto) return;
  if (request->generate.has_structured_output()) {
    reader.Fail("tool_choice", "a call that must be made excludes another structured output");
    return;
  }
  // What "$ref" names would be looked for in the whole schema, not in the tool's own.
  for (const Tool& tool : request->tools) {
    if (request->tool_choice == ToolChoice::kRequired &&
        tool.parameters.find("\"$ref\"") != std::string::npos) {
      reader.Fail("tools", absl::StrCat("tool '", tool.name.substr(0, 100),
                                        "': \"$ref\" in parameters is not supported with "
                                        "tool_choice required; name the tool"));
      return;
    }
  }
  request->generate.mutable_structured_output()->set_json_schema(CallSchema(*request));
}

}  // namespace espalier::openai
