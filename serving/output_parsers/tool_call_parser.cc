#include "serving/output_parsers/tool_call_parser.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/json/bounded_json.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

bool AddCall(const Json& call, const std::vector<Tool>& tools, std::vector<ToolCall>* calls) {
  if (!call.is_object() || !call.value("name", Json()).is_string()) return false;
  const std::string name = call["name"].get<std::string>();
  const Json arguments =
      call.contains("arguments") ? call["arguments"] : call.value("parameters", Json());
  if (FindTool(name, tools) == nullptr || !(arguments.is_object() || arguments.is_string())) {
    return false;
  }
  calls->push_back(
      {name, arguments.is_string() ? arguments.get<std::string>() : DumpJson(arguments)});
  return true;
}

// Skips the JSON values that `text` begins with. Returns where one of `ends` follows outside of all
// of them, or npos.
size_t FindAtTopLevel(absl::string_view text, absl::string_view ends) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (depth == 0 && absl::StrContains(ends, c)) {
      return i;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return absl::string_view::npos;
}

}  // namespace

const ToolCallParser& ToolCallParserFor(absl::string_view chat_template) {
  // Order matters: Qwen3-Coder shares Hermes' tags, and templates for pythonic calls mention
  // Llama's tag.
  for (const ToolCallParser* tool_parser :
       {&Qwen3CoderToolCallParser(), &MistralArgsToolCallParser(), &MistralToolCallParser(),
        &PhiToolCallParser(), &PythonicToolCallParser(), &DeepSeekV3ToolCallParser(),
        &DeepSeekV31ToolCallParser(), &LlamaToolCallParser()}) {
    if (tool_parser->MatchesTemplate(chat_template)) return *tool_parser;
  }
  return HermesToolCallParser();
}

std::vector<ToolCall> ParseJsonCalls(absl::string_view text, const std::vector<Tool>& tools) {
  std::vector<ToolCall> calls;
  while (!text.empty()) {
    const size_t end = FindAtTopLevel(text, ";");
    const absl::StatusOr<Json> parsed = ParseBoundedJson<Json>(text.substr(0, end), kRequestJson);
    if (!parsed.ok() || !parsed->is_structured() || parsed->empty()) return {};
    for (const Json& call : parsed->is_array() ? *parsed : Json::array({*parsed})) {
      if (!AddCall(call, tools, &calls)) return {};
    }
    text = end == absl::string_view::npos ? absl::string_view()
                                          : absl::StripLeadingAsciiWhitespace(text.substr(end + 1));
  }
  return calls;
}

std::optional<ToolCallStart> ParseJsonCallStart(absl::string_view text,
                                                const std::vector<Tool>& tools) {
  size_t at = 0;
  const auto skip = [&](absl::string_view characters) {
    while (at < text.size() && absl::StrContains(characters, text[at])) ++at;
  };
  const auto take = [&](char c) {
    skip(" \t\r\n");
    return at < text.size() && text[at++] == c;
  };
  // A name with escapes is left to ParseJsonCalls.
  const auto string = [&]() -> absl::string_view {
    if (!take('"')) return "";
    const size_t end = text.find_first_of("\"\\", at);
    if (end == absl::string_view::npos || text[end] != '"') return "";
    const absl::string_view value = text.substr(at, end - at);
    at = end + 1;
    return value;
  };
  skip(" \t\r\n}];,[");
  if (!take('{')) return std::nullopt;
  absl::string_view key = string();
  if (key == "type") {
    if (!take(':') || string() != "function" || !take(',')) return std::nullopt;
    key = string();
  }
  if (key != "name" || !take(':')) return std::nullopt;
  const absl::string_view name = string();
  if (FindTool(name, tools) == nullptr || !take(',')) return std::nullopt;
  key = string();
  if ((key != "arguments" && key != "parameters") || !take(':') || !take('{')) return std::nullopt;
  return ToolCallStart{std::string(name), at - 1, NewJsonArgumentsParser()};
}

size_t EndOfJsonCall(absl::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == absl::string_view::npos) return 0;
  if (text[begin] == '}') return begin + 1;
  if (text[begin] != ',') return 0;
  const absl::string_view next = absl::StripLeadingAsciiWhitespace(text.substr(begin + 1));
  // This opens the next call of a list; the brace of the current one is missing.
  if (!next.empty() && next[0] != '"') return 0;
  const size_t end = FindAtTopLevel(text, "}]");
  return end == absl::string_view::npos ? text.size() : end + 1;
}

const Tool* FindTool(absl::string_view name, const std::vector<Tool>& tools) {
  for (const Tool& tool : tools) {
    if (tool.name == name) return &tool;
  }
  return nullptr;
}

std::string DumpJson(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

nlohmann::ordered_json ArgumentsSchema(const Tool& tool) {
  if (!tool.strict) return {{"type", "object"}};
  // A function without parameters accepts no arguments.
  if (tool.parameters.is_null()) {
    return {{"type", "object"}, {"properties", Json::object()}, {"additionalProperties", false}};
  }
  return tool.parameters;
}

std::vector<TagItem> JsonCallItems(const std::vector<Tool>& tools, absl::string_view arguments) {
  std::vector<TagItem> items;
  for (const Tool& tool : tools) {
    items.push_back(
        {.begin = absl::StrCat("{\"name\": ", DumpJson(tool.name), ", \"", arguments, "\": "),
         .schema = DumpJson(ArgumentsSchema(tool)),
         .end = "}"});
  }
  return items;
}

std::vector<TagField> ParameterFields(const Tool& tool, absl::string_view before_name,
                                      absl::string_view behind_name, absl::string_view end,
                                      ValueSyntax syntax) {
  std::vector<TagField> fields;
  const Json properties =
      tool.parameters.is_object() ? tool.parameters.value("properties", Json()) : Json();
  if (!properties.is_object()) return fields;
  const Json required = tool.parameters.value("required", Json::array());
  for (const auto& [name, property] : properties.items()) {
    Json schema = property;
    for (const char* shared : {"$defs", "definitions"}) {
      if (schema.is_object() && tool.parameters.contains(shared)) {
        schema[shared] = tool.parameters[shared];
      }
    }
    fields.push_back(
        {.begin = absl::StrCat(before_name, name, behind_name),
         .schema = DumpJson(schema),
         .syntax = syntax,
         .end = std::string(end),
         .required = std::find(required.begin(), required.end(), name) != required.end()});
  }
  return fields;
}

}  // namespace espalier
