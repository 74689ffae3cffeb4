#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/json/bounded_json.h"
#include "serving/output_parsers/tool_call_parser.h"

namespace espalier {
namespace {

constexpr absl::string_view kCalls = "[TOOL_CALLS]";
constexpr absl::string_view kArguments = "[ARGS]";
constexpr absl::string_view kId = "[CALL_ID]";

// `before` is the text between the tag and the arguments.
absl::string_view MistralCallName(absl::string_view before) {
  const absl::string_view name = absl::StripSuffix(before, kArguments);
  return absl::StripAsciiWhitespace(name.substr(0, name.find(kId)));
}

// [TOOL_CALLS] [{"name": "f", "arguments": {...}}, ...]; since version 11 of Mistral's tokenizer
// [TOOL_CALLS]f[CALL_ID]id[ARGS]{...} for each call, where the id or both markers may be missing.
class Mistral : public ToolCallParser {
 public:
  // `v11`: the format of version 11.
  explicit Mistral(bool v11) : v11_(v11) {}

  const char* name() const override { return v11_ ? "mistral_args" : "mistral"; }
  bool MatchesTemplate(absl::string_view chat_template) const override {
    return absl::StrContains(chat_template, kCalls) &&
           (!v11_ || absl::StrContains(chat_template, kArguments));
  }
  std::vector<Section> sections() const override { return {{std::string(kCalls), ""}}; }
  std::vector<std::string> inner_special_tokens() const override {
    return {std::string(kArguments), std::string(kId)};
  }
  std::vector<ToolCall> ParseSection(absl::string_view inside,
                                     const std::vector<Tool>& tools) const override {
    inside = absl::StripAsciiWhitespace(inside);
    const size_t brace = inside.find('{');
    if (brace == absl::string_view::npos) return {};
    if (brace == 0 || inside[0] == '[') return ParseJsonCalls(inside, tools);
    const absl::StatusOr<nlohmann::ordered_json> arguments =
        ParseBoundedJson<nlohmann::ordered_json>(inside.substr(brace), kRequestJson);
    const absl::string_view name = MistralCallName(inside.substr(0, brace));
    if (!arguments.ok() || !arguments->is_object() || FindTool(name, tools) == nullptr) return {};
    return {{std::string(name), std::string(inside.substr(brace))}};
  }
  std::optional<ToolCallStart> ParseCallStart(absl::string_view inside,
                                              const std::vector<Tool>& tools) const override {
    const size_t brace = inside.find('{');
    if (brace == absl::string_view::npos) return std::nullopt;
    const absl::string_view name = MistralCallName(inside.substr(0, brace));
    if (FindTool(name, tools) == nullptr) return ParseJsonCallStart(inside, tools);
    return ToolCallStart{std::string(name), brace, NewJsonArgumentsParser()};
  }
  StructuralTag MakeStructuralTag(const std::vector<Tool>& tools) const override {
    // No text may follow: it would count as part of the last call.
    StructuralTag structural_tag{.layout = StructuralTag::kTextThenTags,
                                 .triggers = {std::string(kCalls)}};
    if (!v11_) {
      for (const char* blank : {" ", ""}) {
        structural_tag.sections.push_back({.open = absl::StrCat(kCalls, blank, "["),
                                           .items = JsonCallItems(tools, "arguments"),
                                           .separator = ", ",
                                           .most = -1,
                                           .close = "]"});
      }
      return structural_tag;
    }
    TagSection section{.open = std::string(kCalls), .separator = std::string(kCalls), .most = -1};
    for (const Tool& tool : tools) {
      section.items.push_back({.begin = absl::StrCat(tool.name, kArguments),
                               .schema = DumpJson(ArgumentsSchema(tool))});
    }
    structural_tag.sections.push_back(std::move(section));
    return structural_tag;
  }
  bool short_ids() const override { return true; }

 private:
  const bool v11_;
};

}  // namespace

const ToolCallParser& MistralToolCallParser() {
  static const Mistral* tool_parser = new Mistral(false);
  return *tool_parser;
}

const ToolCallParser& MistralArgsToolCallParser() {
  static const Mistral* tool_parser = new Mistral(true);
  return *tool_parser;
}

}  // namespace espalier
