#include "serving/answer/tool_style.h"

#include "absl/strings/ascii.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 256;

bool AddCall(const Json& call, const std::vector<Tool>& tools, std::vector<ToolCall>* calls) {
  if (!call.is_object() || !call.value("name", Json()).is_string()) return false;
  const std::string name = call["name"].get<std::string>();
  const Json arguments =
      call.contains("arguments") ? call["arguments"] : call.value("parameters", Json());
  if (FindTool(name, tools) == nullptr || !(arguments.is_object() || arguments.is_string())) {
    return false;
  }
  calls->push_back(
      {name, arguments.is_string()
                 ? arguments.get<std::string>()
                 : arguments.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)});
  return true;
}

// Where the first JSON value of `text` ends that is followed by a semicolon; npos: nowhere.
size_t SemicolonOf(absl::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      --depth;
    } else if (c == ';' && depth == 0) {
      return i;
    }
  }
  return absl::string_view::npos;
}

}  // namespace

const ToolStyle& ToolStyleOf(absl::string_view chat_template) {
  // Hermes' marks are Qwen3-Coder's, too.
  for (const ToolStyle* style : {&QwenCoderStyle(), &MistralStyle(), &PhiStyle(), &LlamaStyle()}) {
    if (style->IsOf(chat_template)) return *style;
  }
  return HermesStyle();
}

std::vector<ToolCall> ReadJsonCalls(absl::string_view text, const std::vector<Tool>& tools) {
  std::vector<ToolCall> calls;
  while (!text.empty()) {
    const size_t end = SemicolonOf(text);
    const Json parsed = ParseBounded(text.substr(0, end));
    if (!(parsed.is_object() || parsed.is_array()) || parsed.empty()) return {};
    for (const Json& call : parsed.is_array() ? parsed : Json::array({parsed})) {
      if (!AddCall(call, tools, &calls)) return {};
    }
    text = end == absl::string_view::npos ? absl::string_view()
                                          : absl::StripLeadingAsciiWhitespace(text.substr(end + 1));
  }
  return calls;
}

const Tool* FindTool(absl::string_view name, const std::vector<Tool>& tools) {
  for (const Tool& tool : tools) {
    if (tool.name == name) return &tool;
  }
  return nullptr;
}

nlohmann::ordered_json ParseBounded(absl::string_view text) {
  bool deep = false;
  const auto watch = [&](int depth, Json::parse_event_t, Json&) {
    deep = deep || depth > kMaxDepth;
    return !deep;
  };
  Json parsed = Json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  return deep ? Json(nlohmann::json::value_t::discarded) : parsed;
}

}  // namespace espalier
