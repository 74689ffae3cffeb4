#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"
#include "serving/answer/tool_style.h"

namespace espalier {
namespace {

constexpr absl::string_view kArguments = "[ARGS]";
constexpr absl::string_view kId = "[CALL_ID]";

// [TOOL_CALLS] [{"name": "f", "arguments": {...}}, ...]; since the eleventh form of its tokenizer
// [TOOL_CALLS]f[CALL_ID]id[ARGS]{...}, once for each call, where the id or both marks may be
// missing.
class Mistral : public ToolStyle {
 public:
  const char* name() const override { return "mistral"; }
  bool IsOf(absl::string_view chat_template) const override {
    return chat_template.find("[TOOL_CALLS]") != absl::string_view::npos;
  }
  std::vector<Section> sections() const override { return {{"[TOOL_CALLS]", ""}}; }
  std::vector<std::string> marks() const override {
    return {std::string(kArguments), std::string(kId)};
  }
  std::vector<ToolCall> Read(absl::string_view inside,
                             const std::vector<Tool>& tools) const override {
    inside = absl::StripAsciiWhitespace(inside);
    const size_t brace = inside.find('{');
    if (brace == absl::string_view::npos) return {};
    if (brace == 0 || inside[0] == '[') return ReadJsonCalls(inside, tools);
    const nlohmann::ordered_json arguments = ParseBounded(inside.substr(brace));
    absl::string_view name = absl::StripSuffix(inside.substr(0, brace), kArguments);
    name = absl::StripAsciiWhitespace(name.substr(0, name.find(kId)));
    if (!arguments.is_object() || FindTool(name, tools) == nullptr) return {};
    return {{std::string(name), std::string(inside.substr(brace))}};
  }
  bool short_ids() const override { return true; }
};

}  // namespace

const ToolStyle& MistralStyle() {
  static const Mistral* style = new Mistral;
  return *style;
}

}  // namespace espalier
