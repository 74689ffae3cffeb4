#include "serving/answer/tool_style.h"

namespace espalier {
namespace {

// <|python_tag|>{"name": "f", "parameters": {...}}; {...}, as a rule without the tag, in which case
// the whole answer is calls.
class Llama : public ToolStyle {
 public:
  const char* name() const override { return "llama"; }
  bool IsOf(absl::string_view chat_template) const override {
    return chat_template.find("<|python_tag|>") != absl::string_view::npos;
  }
  std::vector<Section> sections() const override { return {{"<|python_tag|>", ""}}; }
  std::vector<ToolCall> Read(absl::string_view inside,
                             const std::vector<Tool>& tools) const override {
    return ReadJsonCalls(inside, tools);
  }
};

}  // namespace

const ToolStyle& LlamaStyle() {
  static const Llama* style = new Llama;
  return *style;
}

}  // namespace espalier
