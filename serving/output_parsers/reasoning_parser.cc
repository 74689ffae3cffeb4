#include "serving/output_parsers/reasoning_parser.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "serving/output_parsers/tool_arguments_parser.h"

namespace espalier {

ReasoningTags ReasoningTagsFor(absl::string_view chat_template) {
  for (const auto& [open, close] : {std::pair{"<think>", "</think>"}, {"[THINK]", "[/THINK]"}}) {
    if (absl::StrContains(chat_template, open) || absl::StrContains(chat_template, close)) {
      return {open, close};
    }
  }
  return {};
}

bool EndsInReasoning(absl::string_view prompt, const ReasoningTags& tags) {
  return !tags.empty() && absl::EndsWith(absl::StripTrailingAsciiWhitespace(prompt), tags.open);
}

ReasoningParser::ReasoningParser(ReasoningTags tags, bool begins_inside)
    : tags_(std::move(tags)),
      state_(tags_.empty() ? State::kDone : (begins_inside ? State::kInside : State::kUndecided)) {}

void ReasoningParser::AppendReasoning(absl::string_view text, std::string* reasoning) {
  if (!has_reasoning_) text = absl::StripLeadingAsciiWhitespace(text);
  if (text.empty()) return;
  has_reasoning_ = true;
  absl::StrAppend(reasoning, text);
}

void ReasoningParser::Append(absl::string_view text, std::string* reasoning, std::string* rest) {
  if (state_ == State::kDone) {
    absl::StrAppend(rest, text);
    return;
  }
  absl::StrAppend(&buffer_, text);
  if (state_ == State::kUndecided) {
    const absl::string_view begun = absl::StripLeadingAsciiWhitespace(buffer_);
    if (absl::StartsWith(begun, tags_.open)) {
      buffer_ = std::string(begun.substr(tags_.open.size()));
      state_ = State::kInside;
    } else if (absl::StartsWith(tags_.open, begun)) {
      return;
    } else {
      state_ = State::kDone;
      absl::StrAppend(rest, std::exchange(buffer_, ""));
      return;
    }
  }
  if (state_ == State::kInside) {
    const size_t close = buffer_.find(tags_.close);
    if (close == std::string::npos) {
      // Hold back trailing whitespace, and what may be the beginning of the closing tag.
      absl::string_view sure = buffer_;
      sure.remove_suffix(PartialTagOverlap(sure, tags_.close));
      sure = absl::StripTrailingAsciiWhitespace(sure);
      AppendReasoning(sure, reasoning);
      buffer_.erase(0, sure.size());
      return;
    }
    AppendReasoning(absl::StripTrailingAsciiWhitespace(absl::string_view(buffer_).substr(0, close)),
                    reasoning);
    buffer_.erase(0, close + tags_.close.size());
    state_ = State::kAfter;
  }
  const absl::string_view behind = absl::StripLeadingAsciiWhitespace(buffer_);
  if (behind.empty()) return;
  absl::StrAppend(rest, behind);
  buffer_.clear();
  state_ = State::kDone;
}

void ReasoningParser::Finish(std::string* reasoning, std::string* rest) {
  if (state_ == State::kUndecided) absl::StrAppend(rest, buffer_);
  if (state_ == State::kInside)
    AppendReasoning(absl::StripTrailingAsciiWhitespace(buffer_), reasoning);
  buffer_.clear();
}

}  // namespace espalier
