// Tool-call formats that are JSON between tags: Hermes (Qwen 2.5 and 3), Llama 3.1, Phi-4-mini.
#include <utility>

#include "absl/strings/match.h"
#include "serving/output_parsers/tool_call_parser.h"

namespace espalier {
namespace {

class JsonToolCallParser : public ToolCallParser {
 public:
  // A template matches if it contains one of `template_markers`. `structural_tag` lacks the items
  // of its sections.
  JsonToolCallParser(const char* name, std::vector<std::string> template_markers,
                     std::vector<Section> sections, const char* arguments,
                     StructuralTag structural_tag)
      : name_(name),
        template_markers_(std::move(template_markers)),
        sections_(std::move(sections)),
        arguments_(arguments),
        structural_tag_(std::move(structural_tag)) {}

  const char* name() const override { return name_; }
  bool MatchesTemplate(absl::string_view chat_template) const override {
    for (const std::string& sign : template_markers_) {
      if (absl::StrContains(chat_template, sign)) return true;
    }
    return false;
  }
  std::vector<Section> sections() const override { return sections_; }
  std::vector<ToolCall> ParseSection(absl::string_view inside,
                                     const std::vector<Tool>& tools) const override {
    return ParseJsonCalls(inside, tools);
  }
  std::optional<ToolCallStart> ParseCallStart(absl::string_view inside,
                                              const std::vector<Tool>& tools) const override {
    return ParseJsonCallStart(inside, tools);
  }
  bool allows_untagged_calls() const override {
    return std::any_of(structural_tag_.sections.begin(), structural_tag_.sections.end(),
                       [](const TagSection& section) { return section.open.empty(); });
  }
  StructuralTag MakeStructuralTag(const std::vector<Tool>& tools) const override {
    StructuralTag structural_tag = structural_tag_;
    for (TagSection& section : structural_tag.sections)
      section.items = JsonCallItems(tools, arguments_);
    return structural_tag;
  }

 private:
  const char* const name_;
  const std::vector<std::string> template_markers_;
  const std::vector<Section> sections_;
  const char* const arguments_;
  const StructuralTag structural_tag_;
};

}  // namespace

// <tool_call>{"name": "f", "arguments": {...}}</tool_call>
const ToolCallParser& HermesToolCallParser() {
  static const auto* tool_parser = new JsonToolCallParser(
      "hermes", {"<tool_call>"}, {{"<tool_call>", "</tool_call>"}}, "arguments",
      {.sections = {{.open = "<tool_call>\n", .close = "\n</tool_call>"}},
       .triggers = {"<tool_call>"}});
  return *tool_parser;
}

// <|python_tag|>{"name": "f", "parameters": {...}}; {...}. Usually without the tag: then the whole
// answer is calls.
const ToolCallParser& LlamaToolCallParser() {
  static const auto* tool_parser = new JsonToolCallParser(
      "llama3_json", {"<|python_tag|>"}, {{"<|python_tag|>", ""}}, "parameters",
      {.layout = StructuralTag::kTextThenTags,
       .sections = {{.separator = "; ", .most = -1},
                    {.open = "<|python_tag|>", .separator = "; ", .most = -1}},
       .triggers = {"{\"name\": ", "<|python_tag|>"}});
  return *tool_parser;
}

// <|tool_call|>[{"name": "f", "arguments": {...}}]<|/tool_call|>, or functools[...].
const ToolCallParser& PhiToolCallParser() {
  static const auto* tool_parser = new JsonToolCallParser(
      "phi4_mini_json", {"<|tool|>", "functools"},
      {{"<|tool_call|>", "<|/tool_call|>"}, {"functools", ""}}, "arguments",
      {.layout = StructuralTag::kTextThenTags,
       .sections =
           {{.open = "<|tool_call|>[", .separator = ", ", .most = -1, .close = "]<|/tool_call|>"},
            {.open = "functools[", .separator = ", ", .most = -1, .close = "]"}},
       .triggers = {"<|tool_call|>", "functools["}});
  return *tool_parser;
}

}  // namespace espalier
