#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/json/bounded_json.h"
#include "serving/output_parsers/tool_call_parser.h"

namespace espalier {
namespace {

// The bars are U+FF5C, the blanks U+2581.
constexpr char kDeepseekOpen[] = "<｜tool▁calls▁begin｜>";
constexpr char kDeepseekClose[] = "<｜tool▁calls▁end｜>";
constexpr absl::string_view kBegin = "<｜tool▁call▁begin｜>";
constexpr absl::string_view kEnd = "<｜tool▁call▁end｜>";
constexpr absl::string_view kSeparator = "<｜tool▁sep｜>";
constexpr absl::string_view kKind = "function";
constexpr absl::string_view kFence = "```json\n";
constexpr absl::string_view kFenceEnd = "\n```";

// A section holds one or more of
//   BEGIN function SEPARATOR f
//   ```json
//   {...}
//   ``` END
// or, since V3.1, BEGIN f SEPARATOR {...} END.
// Given what follows BEGIN, returns the name and the offset of the arguments.
std::optional<std::pair<absl::string_view, size_t>> DeepseekCallName(absl::string_view call) {
  const size_t separator = call.find(kSeparator), brace = call.find('{');
  if (brace == absl::string_view::npos || separator > brace) return std::nullopt;
  const size_t behind = separator + kSeparator.size();
  const absl::string_view rest = call.substr(behind, brace - behind);
  const size_t fence = rest.find(kFence);
  const absl::string_view name =
      fence == absl::string_view::npos ? call.substr(0, separator) : rest.substr(0, fence);
  return std::pair{absl::StripAsciiWhitespace(name), brace};
}

class DeepSeek : public ToolCallParser {
 public:
  explicit DeepSeek(bool fenced) : fenced_(fenced) {}

  const char* name() const override { return fenced_ ? "deepseek_v3" : "deepseek_v31"; }
  bool MatchesTemplate(absl::string_view chat_template) const override {
    return absl::StrContains(chat_template, kBegin) &&
           absl::StrContains(chat_template, "```json") == fenced_;
  }
  std::vector<Section> sections() const override { return {{kDeepseekOpen, kDeepseekClose}}; }
  std::vector<std::string> inner_special_tokens() const override {
    return {std::string(kBegin), std::string(kEnd), std::string(kSeparator)};
  }
  std::vector<ToolCall> ParseSection(absl::string_view inside,
                                     const std::vector<Tool>& tools) const override {
    std::vector<ToolCall> calls;
    for (;;) {
      inside = absl::StripLeadingAsciiWhitespace(inside);
      if (inside.empty()) return calls;
      if (!absl::ConsumePrefix(&inside, kBegin)) return {};
      // An answer that was cut off has no end tag.
      const size_t end = inside.find(kEnd);
      absl::string_view call = inside.substr(0, end);
      inside.remove_prefix(end == absl::string_view::npos ? inside.size() : end + kEnd.size());
      const std::optional<std::pair<absl::string_view, size_t>> begin = DeepseekCallName(call);
      if (!begin || FindTool(begin->first, tools) == nullptr) return {};
      call = absl::StripTrailingAsciiWhitespace(call.substr(begin->second));
      absl::ConsumeSuffix(&call, "```");
      call = absl::StripTrailingAsciiWhitespace(call);
      using Json = nlohmann::ordered_json;
      if (!ParseBoundedJson<Json>(call, kRequestJson).value_or(Json()).is_object()) return {};
      calls.push_back({std::string(begin->first), std::string(call)});
    }
  }
  std::optional<ToolCallStart> ParseCallStart(absl::string_view inside,
                                              const std::vector<Tool>& tools) const override {
    const size_t tag = inside.find(kBegin);
    if (tag == absl::string_view::npos) return std::nullopt;
    const size_t behind = tag + kBegin.size();
    const auto begin = DeepseekCallName(inside.substr(behind));
    if (!begin || FindTool(begin->first, tools) == nullptr) return std::nullopt;
    return ToolCallStart{std::string(begin->first), behind + begin->second,
                         NewJsonArgumentsParser()};
  }
  size_t EndOfCall(absl::string_view text) const override {
    absl::string_view rest = text;
    for (const absl::string_view tag : {absl::string_view("```"), kEnd}) {
      rest = absl::StripLeadingAsciiWhitespace(rest);
      if (absl::StartsWith(tag, rest)) return text.size();
      absl::ConsumePrefix(&rest, tag);
    }
    return text.size() - rest.size();
  }
  StructuralTag MakeStructuralTag(const std::vector<Tool>& tools) const override {
    TagSection section{.open = kDeepseekOpen,
                       .separator = fenced_ ? "\n" : "",
                       .most = -1,
                       .close = kDeepseekClose};
    for (const Tool& tool : tools) {
      section.items.push_back(
          {.begin = fenced_ ? absl::StrCat(kBegin, kKind, kSeparator, tool.name, "\n", kFence)
                            : absl::StrCat(kBegin, tool.name, kSeparator),
           .schema = DumpJson(ArgumentsSchema(tool)),
           .end = absl::StrCat(fenced_ ? kFenceEnd : "", kEnd)});
    }
    return {.sections = {std::move(section)}, .triggers = {kDeepseekOpen}};
  }

 private:
  const bool fenced_;
};

}  // namespace

const ToolCallParser& DeepSeekV3ToolCallParser() {
  static const DeepSeek* tool_parser = new DeepSeek(true);
  return *tool_parser;
}

const ToolCallParser& DeepSeekV31ToolCallParser() {
  static const DeepSeek* tool_parser = new DeepSeek(false);
  return *tool_parser;
}

}  // namespace espalier
