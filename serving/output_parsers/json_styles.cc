// Styles whose calls are JSON between marks.
#include <utility>

#include "absl/strings/match.h"
#include "serving/output_parsers/tool_style.h"

namespace espalier {
namespace {

class JsonStyle : public ToolStyle {
 public:
  // `signs`: what only templates of this style have, one of them.
  // `form`: its items are put in.
  JsonStyle(const char* name, std::vector<std::string> signs, std::vector<Section> sections,
            const char* arguments, FormedText form)
      : name_(name),
        signs_(std::move(signs)),
        sections_(std::move(sections)),
        arguments_(arguments),
        form_(std::move(form)) {}

  const char* name() const override { return name_; }
  bool IsOf(absl::string_view chat_template) const override {
    for (const std::string& sign : signs_) {
      if (absl::StrContains(chat_template, sign)) return true;
    }
    return false;
  }
  std::vector<Section> sections() const override { return sections_; }
  std::vector<ToolCall> Read(absl::string_view inside,
                             const std::vector<Tool>& tools) const override {
    return ReadJsonCalls(inside, tools);
  }
  std::optional<CallBegin> Begin(absl::string_view inside,
                                 const std::vector<Tool>& tools) const override {
    return BeginJsonCall(inside, tools);
  }
  bool goes_without_marks() const override {
    return std::any_of(form_.sections.begin(), form_.sections.end(),
                       [](const FormedSection& section) { return section.open.empty(); });
  }
  FormedText Form(const std::vector<Tool>& tools) const override {
    FormedText form = form_;
    for (FormedSection& section : form.sections) section.items = JsonItems(tools, arguments_);
    return form;
  }

 private:
  const char* const name_;
  const std::vector<std::string> signs_;
  const std::vector<Section> sections_;
  const char* const arguments_;
  const FormedText form_;
};

}  // namespace

// <tool_call>{"name": "f", "arguments": {...}}</tool_call>
const ToolStyle& HermesStyle() {
  static const auto* style =
      new JsonStyle("hermes", {"<tool_call>"}, {{"<tool_call>", "</tool_call>"}}, "arguments",
                    {.sections = {{.open = "<tool_call>\n", .close = "\n</tool_call>"}},
                     .triggers = {"<tool_call>"}});
  return *style;
}

// <|python_tag|>{"name": "f", "parameters": {...}}; {...}, as a rule without the tag, in which case
// the whole answer is calls.
const ToolStyle& LlamaStyle() {
  static const auto* style =
      new JsonStyle("llama", {"<|python_tag|>"}, {{"<|python_tag|>", ""}}, "parameters",
                    {.around = FormedText::kTextBefore,
                     .sections = {{.separator = "; ", .most = -1},
                                  {.open = "<|python_tag|>", .separator = "; ", .most = -1}},
                     .triggers = {"{\"name\": ", "<|python_tag|>"}});
  return *style;
}

// <|tool_call|>[{"name": "f", "arguments": {...}}]<|/tool_call|>, or functools[...].
const ToolStyle& PhiStyle() {
  static const auto* style = new JsonStyle(
      "phi", {"<|tool|>", "functools"}, {{"<|tool_call|>", "<|/tool_call|>"}, {"functools", ""}},
      "arguments",
      {.around = FormedText::kTextBefore,
       .sections =
           {{.open = "<|tool_call|>[", .separator = ", ", .most = -1, .close = "]<|/tool_call|>"},
            {.open = "functools[", .separator = ", ", .most = -1, .close = "]"}},
       .triggers = {"<|tool_call|>", "functools["}});
  return *style;
}

}  // namespace espalier
