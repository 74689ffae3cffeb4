#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "serving/answer/tool_style.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

// Takes `*text` up to `mark` and the mark itself. False if it is not there.
bool TakeUpTo(absl::string_view mark, absl::string_view* text, absl::string_view* before) {
  const size_t at = text->find(mark);
  if (at == absl::string_view::npos) return false;
  *before = text->substr(0, at);
  text->remove_prefix(at + mark.size());
  return true;
}

void AddTypes(const Json& schema, std::set<std::string>* types) {
  if (!schema.is_object()) return;
  const Json type = schema.value("type", Json());
  for (const Json& one : type.is_array() ? type : Json::array({type})) {
    if (one.is_string()) types->insert(one.get<std::string>());
  }
  for (const Json& value : schema.value("enum", Json())) types->insert(value.type_name());
}

std::set<std::string> TypesOf(const Json& parameters, const std::string& name) {
  if (!parameters.is_object() || !parameters.value("properties", Json()).is_object()) return {};
  const Json schema = parameters["properties"].value(name, Json());
  std::set<std::string> types;
  AddTypes(schema, &types);
  for (const char* key : {"anyOf", "oneOf"}) {
    const Json alternatives = schema.is_object() ? schema.value(key, Json()) : Json();
    for (const Json& one : alternatives.is_array() ? alternatives : Json::array()) {
      AddTypes(one, &types);
    }
  }
  return types;
}

// Values are written as they are, without quotes: what they are the schema says.
Json ValueOf(absl::string_view text, const std::set<std::string>& types) {
  if (types == std::set<std::string>{"string"}) return std::string(text);
  const Json parsed = ParseBounded(text);
  const bool fits = !parsed.is_discarded() && !parsed.is_string() &&
                    (types.empty() || types.count(parsed.type_name()) > 0 ||
                     (parsed.is_number_integer() && types.count("integer") > 0));
  if (fits) return parsed;
  // Python's words for them.
  for (const auto& [word, value] : {std::pair{"true", Json(true)}, {"false", Json(false)}}) {
    if (types.count("boolean") > 0 && absl::EqualsIgnoreCase(text, word)) return value;
  }
  if (types.count("null") > 0 && text == "None") return nullptr;
  return std::string(text);
}

// <tool_call>
// <function=f>
// <parameter=place>
// value, of several lines if it likes
// </parameter>
// </function>
// </tool_call>
class QwenCoder : public ToolStyle {
 public:
  const char* name() const override { return "qwen-coder"; }
  bool IsOf(absl::string_view chat_template) const override {
    return absl::StrContains(chat_template, "<function=") &&
           absl::StrContains(chat_template, "<parameter=");
  }
  std::vector<Section> sections() const override { return {{"<tool_call>", "</tool_call>"}}; }
  std::vector<ToolCall> Read(absl::string_view inside,
                             const std::vector<Tool>& tools) const override {
    std::vector<ToolCall> calls;
    absl::string_view before, name, body;
    while (TakeUpTo("<function=", &inside, &before)) {
      if (!absl::StripAsciiWhitespace(before).empty() || !TakeUpTo(">", &inside, &name)) return {};
      const Tool* tool = FindTool(absl::StripAsciiWhitespace(name), tools);
      if (tool == nullptr || !TakeUpTo("</function>", &inside, &body)) return {};
      Json arguments = Json::object();
      absl::string_view key, value;
      while (TakeUpTo("<parameter=", &body, &before)) {
        if (!TakeUpTo(">", &body, &key) || !TakeUpTo("</parameter>", &body, &value)) return {};
        // The line breaks beside the marks are the form's.
        if (absl::StartsWith(value, "\n")) value.remove_prefix(1);
        if (absl::EndsWith(value, "\n")) value.remove_suffix(1);
        const std::string parameter(absl::StripAsciiWhitespace(key));
        arguments[parameter] = ValueOf(value, TypesOf(tool->parameters, parameter));
      }
      calls.push_back({tool->name, DumpJson(arguments)});
    }
    return absl::StripAsciiWhitespace(inside).empty() ? calls : std::vector<ToolCall>();
  }
  FormedText Form(const std::vector<Tool>& tools) const override {
    FormedSection section{.open = "<tool_call>\n", .close = "\n</tool_call>"};
    for (const Tool& tool : tools) {
      FormedItem item{.begin = absl::StrCat("<function=", tool.name, ">\n"),
                      .kind = tool.strict ? FormedItem::kFields : FormedItem::kAnything,
                      .end = "</function>"};
      if (tool.strict) {
        item.fields = FieldsOf(tool, "<parameter=", ">\n", "\n</parameter>\n", Spelling::kPlain);
      }
      section.items.push_back(std::move(item));
    }
    return {.sections = {std::move(section)}, .triggers = {"<tool_call>"}};
  }
};

}  // namespace

const ToolStyle& QwenCoderStyle() {
  static const QwenCoder* style = new QwenCoder;
  return *style;
}

}  // namespace espalier
