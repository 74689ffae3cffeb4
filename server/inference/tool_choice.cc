#include "server/inference/tool_choice.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

absl::StatusOr<Tool> ToolOf(const std::string& text, int index) {
  const auto wrong = [&](const char* what) {
    return absl::InvalidArgumentError(absl::StrCat("tools[", index, "]: ", what));
  };
  const Json json = ParseBounded(text);
  if (!json.is_object()) return wrong("is no JSON object");
  const Json function = json.value("function", Json());
  if (!function.is_object() || !function.value("name", Json()).is_string()) {
    return wrong("must have a 'function' with a 'name'");
  }
  Tool tool;
  tool.name = function["name"].get<std::string>();
  tool.parameters = function.value("parameters", Json());
  if (!tool.parameters.is_null() && !tool.parameters.is_object()) {
    return wrong("'parameters' must be a JSON schema");
  }
  return tool;
}

Json SchemaOf(const Tool& tool) {
  return tool.parameters.is_null() ? Json({{"type", "object"}}) : tool.parameters;
}

}  // namespace

ToolChoice ChoiceOf(const proto::ChatPrompt& chat) {
  if (chat.tools().empty()) return ToolChoice::kNone;
  switch (chat.tool_choice()) {
    case proto::TOOL_CHOICE_NONE:
      return ToolChoice::kNone;
    case proto::TOOL_CHOICE_REQUIRED:
      return ToolChoice::kRequired;
    case proto::TOOL_CHOICE_NAMED:
      return ToolChoice::kNamed;
    default:
      return ToolChoice::kAuto;
  }
}

absl::StatusOr<std::vector<Tool>> ToolsOf(const proto::ChatPrompt& chat) {
  std::vector<Tool> tools;
  if (!proto::ToolChoice_IsValid(chat.tool_choice())) {
    return absl::InvalidArgumentError(
        absl::StrCat("tool_choice is ", chat.tool_choice(), ", which is not known"));
  }
  const bool wanted = chat.tool_choice() == proto::TOOL_CHOICE_REQUIRED ||
                      chat.tool_choice() == proto::TOOL_CHOICE_NAMED;
  if (wanted && chat.tools().empty()) {
    return absl::InvalidArgumentError("tool_choice wants a call, but there are no tools");
  }
  if (ChoiceOf(chat) == ToolChoice::kNone) return tools;
  for (int i = 0; i < chat.tools_size(); ++i) {
    absl::StatusOr<Tool> tool = ToolOf(chat.tools(i), i);
    if (!tool.ok()) return tool.status();
    tools.push_back(*std::move(tool));
  }
  return tools;
}

absl::Status DemandCall(const std::vector<Tool>& tools, proto::GenerateRequest* request) {
  const proto::ChatPrompt& chat = request->chat();
  const ToolChoice choice = ChoiceOf(chat);
  if (choice != ToolChoice::kRequired && choice != ToolChoice::kNamed) return absl::OkStatus();
  if (request->has_structured_output()) {
    return absl::InvalidArgumentError(
        "tool_choice: a call that must be made excludes another structured output");
  }
  Json schema;
  if (choice == ToolChoice::kNamed) {
    const Tool* tool = FindTool(chat.named_tool(), tools);
    if (tool == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("tool_choice names '",
                                                     chat.named_tool().substr(0, 100),
                                                     "', which is none of the tools"));
    }
    schema = SchemaOf(*tool);
  } else {
    Json calls = Json::array();
    for (const Tool& tool : tools) {
      const Json parameters = SchemaOf(tool);
      // What it names would be looked for in the whole schema, not in the tool's own.
      if (absl::StrContains(parameters.dump(-1, ' ', false, Json::error_handler_t::replace),
                            "\"$ref\"")) {
        return absl::InvalidArgumentError(
            absl::StrCat("tool '", tool.name.substr(0, 100),
                         "': \"$ref\" in parameters is not supported with tool_choice required; "
                         "name the tool"));
      }
      calls.push_back(
          {{"type", "object"},
           {"properties", {{"name", {{"const", tool.name}}}, {"arguments", parameters}}},
           {"required", {"name", "arguments"}}});
    }
    schema = {{"type", "array"}, {"items", {{"anyOf", std::move(calls)}}}, {"minItems", 1}};
    if (chat.single_tool_call()) schema["maxItems"] = 1;
  }
  request->mutable_structured_output()->set_json_schema(
      schema.dump(-1, ' ', false, Json::error_handler_t::replace));
  return absl::OkStatus();
}

}  // namespace espalier
