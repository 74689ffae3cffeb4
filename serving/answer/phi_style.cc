#include "serving/answer/tool_style.h"

namespace espalier {
namespace {

// <|tool_call|>[{"name": "f", "arguments": {...}}]<|/tool_call|>, or functools[...].
class Phi : public ToolStyle {
 public:
  const char* name() const override { return "phi"; }
  bool IsOf(absl::string_view chat_template) const override {
    return chat_template.find("<|tool|>") != absl::string_view::npos ||
           chat_template.find("functools") != absl::string_view::npos;
  }
  std::vector<Section> sections() const override {
    return {{"<|tool_call|>", "<|/tool_call|>"}, {"functools", ""}};
  }
  std::vector<ToolCall> Read(absl::string_view inside,
                             const std::vector<Tool>& tools) const override {
    return ReadJsonCalls(inside, tools);
  }
};

}  // namespace

const ToolStyle& PhiStyle() {
  static const Phi* style = new Phi;
  return *style;
}

}  // namespace espalier
