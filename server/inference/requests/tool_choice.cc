#include "server/inference/requests/tool_choice.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json/bounded_json.h"
#include "server/inference/field_error.h"
#include "serving/grammar/json_schema.h"
#include "serving/output_parsers/parameter_schemas.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxToolBytes = 1 << 20;
// Limit on shared definitions, which are copied for each parameter of a tool.
constexpr size_t kMaxSharedBytes = 16 << 20;

// Tool-call parsers with one section per parameter copy the shared definitions into each.
size_t SharedBytes(const Json& parameters) {
  size_t bytes = 0;
  for (const char* shared : {"$defs", "definitions"}) {
    if (parameters.contains(shared)) bytes += DumpJson(parameters[shared]).size();
  }
  return bytes * parameters.value("properties", Json::object()).size();
}

absl::StatusOr<Tool> ToolOf(const std::string& text, int index) {
  std::string name;
  const auto wrong = [&](absl::string_view what) {
    return FieldError("tools", absl::StrCat("tools[", index, "]", name, ": ", what));
  };
  if (text.size() > kMaxToolBytes) {
    return wrong(absl::StrCat("has ", text.size(), " bytes, expected at most ", kMaxToolBytes));
  }
  const Json json = ParseBoundedJson<Json>(text, kRequestJson).value_or(Json());
  if (!json.is_object()) return wrong("is no JSON object");
  const Json function = json.value("function", Json());
  if (!function.is_object() || !function.value("name", Json()).is_string()) {
    return wrong("must have a 'function' with a 'name'");
  }
  Tool tool;
  tool.name = function["name"].get<std::string>();
  name = absl::StrCat(" ('", tool.name.substr(0, 100), "')");
  tool.parameters = function.value("parameters", Json());
  if (!tool.parameters.is_null() && !tool.parameters.is_object()) {
    return wrong("'parameters' must be a JSON schema");
  }
  tool.parameters = InlineTopLevelRef(std::move(tool.parameters));
  const size_t shared = tool.parameters.is_object() ? SharedBytes(tool.parameters) : 0;
  if (shared > kMaxSharedBytes) {
    return wrong(absl::StrCat("'$defs' and 'definitions', once for each of the properties, have ",
                              shared, " bytes, expected at most ", kMaxSharedBytes));
  }
  const Json strict = function.value("strict", Json());
  if (!strict.is_null() && !strict.is_boolean()) return wrong("'strict' must be true or false");
  tool.strict = strict == true;
  if (tool.strict && tool.parameters.is_object()) {
    const std::vector<std::string> ignored = UnenforcedKeywords(DumpJson(tool.parameters));
    if (!ignored.empty()) {
      return wrong(absl::StrCat("'parameters': ", ignored[0],
                                "; 'strict' promises the whole schema: leave out this keyword or "
                                "'strict'"));
    }
  }
  return tool;
}

// Rejects strict schemas that per-parameter sections cannot enforce.
absl::Status CheckFields(const StructuralTag& constraint, const std::vector<Tool>& tools) {
  bool by_field = false;
  for (const TagSection& section : constraint.sections) {
    for (const TagItem& item : section.items) {
      by_field = by_field || item.kind == TagItem::kFields;
    }
  }
  for (size_t i = 0; i < tools.size() && by_field; ++i) {
    if (!tools[i].strict) continue;
    const absl::Status status = CheckParameterSchemas(tools[i].parameters);
    if (status.ok()) continue;
    return FieldError("tools", absl::StrCat("tools[", i, "] ('", tools[i].name.substr(0, 100),
                                            "'), 'parameters': ", status.message()));
  }
  return absl::OkStatus();
}

}  // namespace

ToolChoice ToolChoiceOf(const v1::ChatPrompt& chat) {
  if (chat.tools().empty()) return ToolChoice::kNone;
  switch (chat.tool_choice()) {
    case v1::TOOL_CHOICE_NONE:
      return ToolChoice::kNone;
    case v1::TOOL_CHOICE_REQUIRED:
      return ToolChoice::kRequired;
    case v1::TOOL_CHOICE_NAMED:
      return ToolChoice::kNamed;
    default:
      return ToolChoice::kAuto;
  }
}

absl::StatusOr<std::vector<Tool>> ToolsOf(const v1::ChatPrompt& chat) {
  std::vector<Tool> tools;
  if (!v1::ToolChoice_IsValid(chat.tool_choice())) {
    return FieldError("tool_choice",
                      absl::StrCat("tool_choice is ", chat.tool_choice(), ", which is not known"));
  }
  const bool wanted =
      chat.tool_choice() == v1::TOOL_CHOICE_REQUIRED || chat.tool_choice() == v1::TOOL_CHOICE_NAMED;
  if (wanted && chat.tools().empty()) {
    return FieldError("tool_choice", "tool_choice wants a call, but there are no tools");
  }
  if (ToolChoiceOf(chat) == ToolChoice::kNone) return tools;
  for (int i = 0; i < chat.tools_size(); ++i) {
    absl::StatusOr<Tool> tool = ToolOf(chat.tools(i), i);
    if (!tool.ok()) return tool.status();
    tools.push_back(*std::move(tool));
  }
  return tools;
}

absl::StatusOr<std::optional<StructuredOutput>> AnswerConstraint(
    const std::vector<Tool>& tools, const ToolCallParser& tool_parser, const v1::ChatPrompt& chat,
    const std::optional<StructuredOutput>& content) {
  const ToolChoice choice = ToolChoiceOf(chat);
  const bool strict =
      std::any_of(tools.begin(), tools.end(), [](const Tool& tool) { return tool.strict; });
  // A structural tag has its own rules for where tags may stand.
  const bool tag = content && (content->kind == StructuredOutput::kStructuralTag ||
                               content->kind == StructuredOutput::kXgrammarStructuralTag);
  const bool free = choice == ToolChoice::kAuto && !strict && (!content || tag);
  if (choice == ToolChoice::kNone || free) return content;
  if (tag) {
    return FieldError(choice == ToolChoice::kAuto ? "tools" : "tool_choice",
                      "tools: calls that are strict or demanded exclude a structural tag; leave "
                      "one of them out");
  }
  // A required call follows the tool's schema, strict or not.
  std::vector<Tool> bound = tools;
  for (Tool& tool : bound) tool.strict = tool.strict || !tool.parameters.is_null();
  StructuredOutput constraint{.kind = StructuredOutput::kStructuralTag};
  switch (choice) {
    case ToolChoice::kNamed: {
      const Tool* tool = FindTool(chat.named_tool(), bound);
      if (tool == nullptr) {
        return FieldError("tool_choice",
                          absl::StrCat("tool_choice names '", chat.named_tool().substr(0, 100),
                                       "', which is none of the tools"));
      }
      return StructuredOutput{.kind = StructuredOutput::kJsonSchema,
                              .text = DumpJson(ArgumentsSchema(*tool))};
    }
    case ToolChoice::kRequired:
      constraint.structural_tag = {.layout = StructuralTag::kSingleSection,
                                   .sections = {{.open = "[",
                                                 .items = JsonCallItems(bound, "arguments"),
                                                 .separator = ", ",
                                                 .most = -1,
                                                 .close = "]"}}};
      break;
    default:
      constraint.structural_tag = tool_parser.MakeStructuralTag(tools);
      if (absl::Status status = CheckFields(constraint.structural_tag, tools); !status.ok())
        return status;
      if (content) {
        constraint.structural_tag.layout =
            constraint.structural_tag.layout == StructuralTag::kTextThenTags
                ? StructuralTag::kSingleSection
                : StructuralTag::kTagsOnly;
        constraint.alternatives = {*content};
      }
  }
  if (chat.single_tool_call()) {
    constraint.structural_tag.most = 1;
    for (TagSection& section : constraint.structural_tag.sections) section.most = 1;
  }
  return constraint;
}

}  // namespace espalier
