#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "serving/output_parsers/python_literal.h"
#include "serving/output_parsers/tool_call_parser.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kPythonicOpen[] = "<|tool_call_start|>";
constexpr char kPythonicClose[] = "<|tool_call_end|>";

// [f(a=1, s="x"), g()]: usually the whole answer; between tags for some models (LFM2), behind
// Llama's tag for others.
class Pythonic : public ToolCallParser {
 public:
  const char* name() const override { return "pythonic"; }
  bool MatchesTemplate(absl::string_view chat_template) const override {
    return absl::StrContains(chat_template, "[func_name1(") ||
           absl::StrContains(chat_template, "[func1(") ||
           absl::StrContains(chat_template, kPythonicOpen);
  }
  std::vector<Section> sections() const override {
    return {{kPythonicOpen, kPythonicClose},
            {"<|python_start|>", "<|python_end|>"},
            {"<|python_tag|>", ""}};
  }
  std::vector<ToolCall> ParseSection(absl::string_view inside,
                                     const std::vector<Tool>& tools) const override {
    std::vector<ToolCall> calls;
    PythonLiteralParser parser(inside);
    const bool list = parser.Take('[');
    do {
      const std::string name = parser.Name();
      if (FindTool(name, tools) == nullptr || !parser.Take('(')) return {};
      Json arguments = Json::object();
      while (!parser.Take(')')) {
        const std::string key = parser.Name();
        if (key.empty() || !parser.Take('=') || arguments.contains(key)) return {};
        arguments[key] = parser.Value();
        if (parser.failed() || !(parser.Take(',') || parser.Next() == ')')) return {};
      }
      calls.push_back({name, DumpJson(arguments)});
    } while (list && parser.Take(',') && parser.Next() != ']');
    if ((list && !parser.Take(']')) || !parser.AtEnd()) return {};
    return calls;
  }
  std::vector<ToolCall> ParseUntagged(absl::string_view answer,
                                      const std::vector<Tool>& tools) const override {
    std::vector<ToolCall> calls = ParseSection(answer, tools);
    return calls.empty() ? ParseJsonCalls(answer, tools) : calls;
  }
  bool allows_untagged_calls() const override { return true; }
  StructuralTag MakeStructuralTag(const std::vector<Tool>& tools) const override {
    StructuralTag structural_tag{.layout = StructuralTag::kTextThenTags};
    TagSection section{.separator = ", ", .most = -1};
    for (const Tool& tool : tools) {
      TagItem item{.begin = absl::StrCat(tool.name, "("),
                   .kind = tool.strict ? TagItem::kFields : TagItem::kKeywords,
                   .separator = ", ",
                   .end = ")"};
      if (tool.strict) item.fields = ParameterFields(tool, "", "=", "", ValueSyntax::kPython);
      section.items.push_back(std::move(item));
    }
    for (const auto& [open, close] : {std::pair{"", ""},
                                      {kPythonicOpen, kPythonicClose},
                                      {"<|python_start|>", "<|python_end|>"},
                                      {"<|python_tag|>", ""}}) {
      section.open = absl::StrCat(open, "[");
      section.close = absl::StrCat("]", close);
      structural_tag.sections.push_back(section);
      if (*open != '\0') structural_tag.triggers.push_back(open);
    }
    // Without a tag, the tool's name distinguishes a call from a list.
    for (const Tool& tool : tools)
      structural_tag.triggers.push_back(absl::StrCat("[", tool.name, "("));
    return structural_tag;
  }
};

}  // namespace

const ToolCallParser& PythonicToolCallParser() {
  static const Pythonic* tool_parser = new Pythonic;
  return *tool_parser;
}

}  // namespace espalier
