#include "serving/output_parsers/answer_style.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace espalier {

ReasoningMarks ReasoningMarksOf(absl::string_view chat_template) {
  for (const auto& [open, close] : {std::pair{"<think>", "</think>"}, {"[THINK]", "[/THINK]"}}) {
    if (absl::StrContains(chat_template, open) || absl::StrContains(chat_template, close)) {
      return {open, close};
    }
  }
  return {};
}

bool EndsInReasoning(absl::string_view prompt, const ReasoningMarks& marks) {
  return !marks.empty() && absl::EndsWith(absl::StripTrailingAsciiWhitespace(prompt), marks.open);
}

}  // namespace espalier
