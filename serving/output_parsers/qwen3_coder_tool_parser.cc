#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/json/bounded_json.h"
#include "serving/output_parsers/tool_call_parser.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::string_view kFunction = "<function=", kFunctionEnd = "</function>";

// Moves *text past `tag` and sets *before to what precedes it. Returns false if there is no tag.
bool TakeUpTo(absl::string_view tag, absl::string_view* text, absl::string_view* before) {
  const size_t at = text->find(tag);
  if (at == absl::string_view::npos) return false;
  *before = text->substr(0, at);
  text->remove_prefix(at + tag.size());
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

// Values are written without quotes; the schema's types determine how to read them.
Json ValueOf(absl::string_view text, const std::set<std::string>& types) {
  if (types == std::set<std::string>{"string"}) return std::string(text);
  const absl::StatusOr<Json> parsed = ParseBoundedJson<Json>(text, kRequestJson);
  const bool fits = parsed.ok() && !parsed->is_string() &&
                    (types.empty() || types.count(parsed->type_name()) > 0 ||
                     (parsed->is_number_integer() && types.count("integer") > 0));
  if (fits) return *parsed;
  // Python's spelling of constants.
  for (const auto& [word, value] : {std::pair{"true", Json(true)}, {"false", Json(false)}}) {
    if (types.count("boolean") > 0 && absl::EqualsIgnoreCase(text, word)) return value;
  }
  if (types.count("null") > 0 && text == "None") return nullptr;
  return std::string(text);
}

// Bytes at the end of `text` that begin an incomplete UTF-8 character.
size_t IncompleteCharacterBytes(absl::string_view text) {
  for (size_t n = 1; n <= std::min<size_t>(text.size(), 3); ++n) {
    const auto c = static_cast<unsigned char>(text[text.size() - n]);
    if (c < 0x80) return 0;
    if (c < 0xC0) continue;
    const size_t length = c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
    return n < length ? n : 0;
  }
  return 0;
}

// Turns <parameter=...> elements into a JSON object. Streams strings; emits other values when they
// are complete, since their type decides how they are written.
class XmlParameterParser : public ToolArgumentsParser {
 public:
  explicit XmlParameterParser(const Json& parameters) : parameters_(parameters) {}

  size_t Take(absl::string_view text, std::string* json) override {
    const size_t size = text.size();
    while (!done_ && (in_value_ ? TakeValue(&text, json) : TakeTag(&text, json))) {
    }
    return size - text.size();
  }
  bool done() const override { return done_; }

 private:
  static constexpr absl::string_view kBegin = "<parameter=", kEnd = "</parameter>",
                                     kOver = kFunctionEnd;

  // TakeTag and TakeValue return whether to continue.
  bool TakeTag(absl::string_view* text, std::string* json) {
    *text = absl::StripLeadingAsciiWhitespace(*text);
    if (absl::StartsWith(*text, kBegin)) {
      const size_t end = text->find('>');
      if (end == absl::string_view::npos) return false;
      const std::string key(
          absl::StripAsciiWhitespace(text->substr(kBegin.size(), end - kBegin.size())));
      absl::StrAppend(json, std::exchange(first_, false) ? "{" : ",", DumpJson(key), ":");
      types_ = TypesOf(parameters_, key);
      text->remove_prefix(end + 1);
      in_value_ = value_begins_ = true;
      return true;
    }
    // The end tag, or something unexpected: either ends the object.
    if (absl::StartsWith(*text, kOver)) {
      text->remove_prefix(kOver.size());
    } else if (absl::StartsWith(kBegin, *text) || absl::StartsWith(kOver, *text)) {
      return false;
    }
    absl::StrAppend(json, first_ ? "{}" : "}");
    done_ = true;
    return false;
  }

  bool TakeValue(absl::string_view* text, std::string* json) {
    const bool is_text = types_ == std::set<std::string>{"string"};
    const size_t end = is_text ? text->find(kEnd) : std::min(text->find(kEnd), text->find(kOver));
    const bool whole = end != absl::string_view::npos;
    absl::string_view value = text->substr(0, end);
    if (!whole && !is_text) return false;
    // The line breaks next to the tags belong to the format, not to the value.
    const bool begins = value_begins_;
    if (begins) {
      if (!whole && value.empty()) return false;
      value_begins_ = false;
      if (absl::StartsWith(value, "\n")) value.remove_prefix(1);
      if (is_text) absl::StrAppend(json, "\"");
    }
    if (whole) {
      if (absl::EndsWith(value, "\n")) value.remove_suffix(1);
    } else {
      value.remove_suffix(std::max(PartialTagOverlap(value, kEnd),
                                   PartialTagOverlap(value, absl::StrCat("\n", kEnd))));
      value.remove_suffix(IncompleteCharacterBytes(value));
    }
    if (is_text) {
      const std::string quoted = DumpJson(std::string(value));
      absl::StrAppend(json, absl::string_view(quoted).substr(1, quoted.size() - 2),
                      whole ? "\"" : "");
    } else {
      absl::StrAppend(json, DumpJson(ValueOf(value, types_)));
    }
    if (whole) {
      text->remove_prefix(end);
      // Some models omit the tag.
      if (absl::StartsWith(*text, kEnd)) text->remove_prefix(kEnd.size());
      in_value_ = false;
    } else {
      text->remove_prefix(static_cast<size_t>(value.data() + value.size() - text->data()));
    }
    return whole;
  }

  const Json parameters_;  // the tool's schema
  std::set<std::string> types_;
  bool first_ = true, in_value_ = false, value_begins_ = false, done_ = false;
};

// <tool_call>
// <function=f>
// <parameter=place>
// value, may have several lines
// </parameter>
// </function>
// </tool_call>
class Qwen3Coder : public ToolCallParser {
 public:
  const char* name() const override { return "qwen3_coder"; }
  bool MatchesTemplate(absl::string_view chat_template) const override {
    return absl::StrContains(chat_template, "<function=") &&
           absl::StrContains(chat_template, "<parameter=");
  }
  std::vector<Section> sections() const override { return {{"<tool_call>", "</tool_call>"}}; }
  // All calls are streamed by ParseCallStart.
  std::vector<ToolCall> ParseSection(absl::string_view inside,
                                     const std::vector<Tool>& tools) const override {
    return {};
  }
  std::optional<ToolCallStart> ParseCallStart(absl::string_view inside,
                                              const std::vector<Tool>& tools) const override {
    absl::string_view rest = inside, before, name;
    if (!TakeUpTo(kFunction, &rest, &before) || !absl::StripAsciiWhitespace(before).empty() ||
        !TakeUpTo(">", &rest, &name)) {
      return std::nullopt;
    }
    const Tool* tool = FindTool(absl::StripAsciiWhitespace(name), tools);
    if (tool == nullptr) return std::nullopt;
    return ToolCallStart{tool->name, inside.size() - rest.size(),
                         std::make_unique<XmlParameterParser>(tool->parameters)};
  }
  size_t EndOfCall(absl::string_view text) const override {
    // Skips text that is no parameter.
    const size_t end = text.find(kFunctionEnd);
    return end < text.find(kFunction) ? end + kFunctionEnd.size() : 0;
  }
  StructuralTag MakeStructuralTag(const std::vector<Tool>& tools) const override {
    TagSection section{.open = "<tool_call>\n", .close = "\n</tool_call>"};
    for (const Tool& tool : tools) {
      TagItem item{.begin = absl::StrCat("<function=", tool.name, ">\n"),
                   .kind = tool.strict ? TagItem::kFields : TagItem::kAnything,
                   .end = "</function>"};
      if (tool.strict) {
        item.fields =
            ParameterFields(tool, "<parameter=", ">\n", "\n</parameter>\n", ValueSyntax::kUnquoted);
      }
      section.items.push_back(std::move(item));
    }
    return {.sections = {std::move(section)}, .triggers = {"<tool_call>"}};
  }
};

}  // namespace

const ToolCallParser& Qwen3CoderToolCallParser() {
  static const Qwen3Coder* tool_parser = new Qwen3Coder;
  return *tool_parser;
}

}  // namespace espalier
