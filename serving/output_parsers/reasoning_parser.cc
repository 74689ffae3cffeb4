#include "serving/output_parsers/reasoning_parser.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace espalier {

ReasoningTags ReasoningTagsFor(absl::string_view chat_template) {
  for (const auto& [open, close] : {std::pair{"<think>", "</think>"}, {"[THINK]", "[/THINK]"}}) {
    if (absl::StrContains(chat_template, open) || absl::StrContains(chat_template, close)) {
      return {open, close};
    }
  }
  return {};
}

bool EndsInReasoning(absl::string_view prompt, const ReasoningTags& marks) {
  return !marks.empty() && absl::EndsWith(absl::StripTrailingAsciiWhitespace(prompt), marks.open);
}

}  // namespace espalier
