#include "serving/answer/tool_style.h"

namespace espalier {
namespace {

// <tool_call>{"name": "f", "arguments": {...}}</tool_call>
class Hermes : public ToolStyle {
 public:
  const char* name() const override { return "hermes"; }
  bool IsOf(absl::string_view chat_template) const override {
    return chat_template.find("<tool_call>") != absl::string_view::npos;
  }
  std::vector<Section> sections() const override { return {{"<tool_call>", "</tool_call>"}}; }
  std::vector<ToolCall> Read(absl::string_view inside,
                             const std::vector<Tool>& tools) const override {
    return ReadJsonCalls(inside, tools);
  }
};

}  // namespace

const ToolStyle& HermesStyle() {
  static const Hermes* style = new Hermes;
  return *style;
}

}  // namespace espalier
