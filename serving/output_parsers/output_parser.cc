#include "serving/output_parsers/output_parser.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace espalier {
namespace {

constexpr size_t kNotFound = std::string::npos;

std::vector<ToolCallParser::Section> SectionsOf(const OutputParserOptions& options) {
  if (options.choice != ToolChoice::kAuto) return {};
  return options.tool_parser->sections();
}

// Whether an answer that begins with this bracket or brace may be tool calls as a whole. The first
// key of the first object decides, or the first name of a list.
bool MayBeToolCalls(absl::string_view begun, const std::vector<Tool>& tools) {
  const auto next = [&begun](char c) {
    begun = absl::StripLeadingAsciiWhitespace(begun);
    return absl::ConsumePrefix(&begun, absl::string_view(&c, 1));
  };
  bool list = false;
  while (next('[')) list = true;
  if (!next('{')) {
    if (!list) return true;  // only whitespace so far
    const size_t end = begun.find('(');
    const absl::string_view name = absl::StripTrailingAsciiWhitespace(begun.substr(0, end));
    return std::any_of(tools.begin(), tools.end(), [&](const Tool& tool) {
      return end == kNotFound ? absl::StartsWith(tool.name, name) : tool.name == name;
    });
  }
  if (!next('"')) return begun.empty();
  // An escape may spell any key.
  const size_t end = begun.find_first_of("\"\\");
  const bool closed = end != kNotFound && begun[end] == '"';
  const absl::string_view key = begun.substr(0, end);
  for (const absl::string_view own : {"name", "arguments", "parameters", "type", "function", "id",
                                      "index", "call_id", "tool_call_id", "thought", "reasoning"}) {
    if (closed ? own == key : absl::StartsWith(own, key)) return true;
  }
  return false;
}

}  // namespace

OutputParser::OutputParser(OutputParserOptions options)
    : options_(std::move(options)),
      sections_(SectionsOf(options_)),
      reasoning_(options_.reasoning, options_.begins_in_reasoning) {
  if (options_.choice == ToolChoice::kRequired) {
    state_ = State::kWhole;
  } else if (options_.choice == ToolChoice::kAuto && options_.text_is_constrained &&
             !options_.tool_parser->allows_untagged_calls()) {
    state_ = State::kText;
  }
}

OutputDelta OutputParser::Append(const std::string& text) {
  OutputDelta out;
  if (done_) return out;
  std::string rest;
  reasoning_.Append(text, &out.reasoning, &rest);
  Take(rest, &out);
  return out;
}

void OutputParser::Take(const std::string& text, OutputDelta* out) {
  if (text.empty()) return;
  if (options_.choice == ToolChoice::kNone) {
    out->text += text;
    return;
  }
  if (options_.choice == ToolChoice::kNamed) {
    buffer_ += text;
    ToolCallDelta part;
    part.arguments = text;
    if (std::exchange(next_index_, 1) == 0) {
      part.id = ToolCallId(0);
      part.name = options_.named_tool;
    }
    out->calls.push_back(std::move(part));
    return;
  }
  buffer_ += text;
  if (state_ == State::kUndecided) {
    const absl::string_view begun = absl::StripLeadingAsciiWhitespace(buffer_);
    if (begun.size() < 2) return;
    // A tag may begin with a bracket, too; its first two characters differ from JSON.
    const bool tag = std::any_of(sections_.begin(), sections_.end(), [&](const auto& section) {
      return absl::StartsWith(section.open, begun.substr(0, 2));
    });
    state_ = !tag && (begun[0] == '{' || begun[0] == '[') ? State::kWhole : State::kText;
  }
  const bool unsure = state_ == State::kWhole && options_.choice == ToolChoice::kAuto &&
                      next_index_ == 0 && !arguments_;
  if (unsure && !MayBeToolCalls(buffer_, options_.tools)) state_ = State::kText;
  if (state_ == State::kText || state_ == State::kInSection) ParseText(out);
  while (state_ == State::kWhole && ParseCallsIncrementally(kNotFound, out)) {
  }
}

size_t OutputParser::FindOpen() {
  size_t first = kNotFound;
  for (const ToolCallParser::Section& section : sections_) {
    const size_t at = buffer_.find(section.open);
    if (at >= first) continue;
    first = at;
    section_ = &section;
  }
  return first;
}

std::pair<size_t, size_t> OutputParser::FindClose() const {
  const bool closes = !section_->close.empty();
  const size_t at = buffer_.find(closes ? section_->close : section_->open);
  if (at == kNotFound) return {at, at};
  return {at, closes ? at + section_->close.size() : at};
}

void OutputParser::ParseText(OutputDelta* out) {
  for (;;) {
    if (state_ == State::kText) {
      // Whitespace between calls is not content.
      if (after_call_) buffer_ = std::string(absl::StripLeadingAsciiWhitespace(buffer_));
      const size_t open = FindOpen();
      if (open == kNotFound) {
        size_t keep = 0;
        for (const ToolCallParser::Section& section : sections_) {
          keep = std::max(keep, PartialTagOverlap(buffer_, section.open));
        }
        if (buffer_.size() > keep) after_call_ = false;
        out->text += buffer_.substr(0, buffer_.size() - keep);
        buffer_.erase(0, buffer_.size() - keep);
        return;
      }
      out->text += buffer_.substr(0, open);
      buffer_.erase(0, open + section_->open.size());
      state_ = State::kInSection;
    }
    for (;;) {
      const auto [end, behind] = arguments_ ? std::pair{kNotFound, kNotFound} : FindClose();
      if (ParseCallsIncrementally(end, out)) continue;
      if (done_ || arguments_ || end == kNotFound) return;
      const std::string inside = buffer_.substr(0, end);
      const std::string close = buffer_.substr(end, behind - end);
      buffer_.erase(0, behind);
      if (std::exchange(streamed_calls_, 0) > 0) {
        after_call_ = AddRemainder(inside, out);
      } else {
        after_call_ = AddCalls(ParseCalls(inside), out);
        if (!after_call_) absl::StrAppend(&out->text, section_->open, inside, close);
      }
      if (done_) return;
      state_ = State::kText;
      break;
    }
  }
}

bool OutputParser::StopAtExtraCall() {
  if (!options_.single_call || next_index_ == 0) return false;
  done_ = true;
  buffer_.clear();
  return true;
}

bool OutputParser::ParseCallsIncrementally(size_t end, OutputDelta* out) {
  if (!arguments_) {
    const absl::string_view inside = absl::string_view(buffer_).substr(0, end);
    std::optional<ToolCallStart> begin =
        options_.choice == ToolChoice::kRequired
            ? ParseJsonCallStart(inside, options_.tools)
            : options_.tool_parser->ParseCallStart(inside, options_.tools);
    if (!begin || StopAtExtraCall()) return false;
    const int index = next_index_++;
    out->calls.push_back({index, ToolCallId(index), begin->name, "", out->text.size()});
    buffer_.erase(0, begin->arguments);
    arguments_ = std::move(begin->parser);
    ++streamed_calls_;
  }
  std::string json;
  buffer_.erase(0, arguments_->Take(buffer_, &json));
  if (!json.empty()) {
    // Merge into the delta of this call, if this piece of text has one already.
    if (out->calls.empty() || out->calls.back().index != next_index_ - 1) {
      out->calls.push_back({next_index_ - 1, "", "", "", out->text.size()});
    }
    out->calls.back().arguments += json;
  }
  if (!arguments_->done()) return false;
  arguments_.reset();
  return true;
}

std::string OutputParser::ToolCallId(int index) const {
  if (options_.tool_parser == nullptr || !options_.tool_parser->short_ids()) {
    return absl::StrCat(options_.id, "-", index);
  }
  constexpr absl::string_view kLetters = "0123456789abcdefghijklmnopqrstuvwxyz";
  // Multiplication by an odd number is a bijection, so the ids of a request differ.
  uint64_t bits = options_.short_id + static_cast<uint64_t>(index) * 0x9E3779B97F4A7C15ull;
  bits = (bits ^ (bits >> 31)) * 0xBF58476D1CE4E5B9ull;
  std::string id;
  for (int i = 0; i < 9; ++i, bits /= kLetters.size()) id.push_back(kLetters[bits % 36]);
  return id;
}

bool OutputParser::AddCalls(std::vector<ToolCall> calls, OutputDelta* out) {
  for (ToolCall& call : calls) {
    if (StopAtExtraCall()) break;
    const int index = next_index_++;
    out->calls.push_back({index, ToolCallId(index), std::move(call.name), std::move(call.arguments),
                          out->text.size()});
  }
  return !calls.empty();
}

std::vector<ToolCall> OutputParser::ParseCalls(absl::string_view text) const {
  if (options_.choice == ToolChoice::kRequired) return ParseJsonCalls(text, options_.tools);
  return state_ == State::kInSection ? options_.tool_parser->ParseSection(text, options_.tools)
                                     : options_.tool_parser->ParseUntagged(text, options_.tools);
}

bool OutputParser::AddRemainder(absl::string_view rest, OutputDelta* out) {
  rest.remove_prefix(options_.choice == ToolChoice::kRequired
                         ? EndOfJsonCall(rest)
                         : options_.tool_parser->EndOfCall(rest));
  rest.remove_prefix(std::min(rest.find_first_not_of(" \t\r\n}];,"), rest.size()));
  if (rest.empty()) return true;
  std::vector<ToolCall> calls = ParseCalls(rest);
  if (calls.empty()) {
    // The end of a list whose beginning was streamed with earlier calls.
    const absl::string_view items = rest.substr(0, rest.find_last_not_of(" \t\r\n];,") + 1);
    calls = ParseCalls(absl::StrCat("[", items, "]"));
  }
  if (AddCalls(std::move(calls), out)) return true;
  absl::StrAppend(&out->text, rest);
  return false;
}

OutputDelta OutputParser::Finish() {
  OutputDelta out;
  if (done_) return out;
  std::string last;
  reasoning_.Finish(&out.reasoning, &last);
  Take(last, &out);
  const std::string rest = std::exchange(buffer_, "");
  if (options_.choice == ToolChoice::kNamed) {
    if (next_index_ > 0 && !nlohmann::json::accept(rest)) {
      unfinished_call_ = UnfinishedCall::kArguments;
    }
  } else if (state_ == State::kInSection || (state_ == State::kWhole && !rest.empty())) {
    FinishCalls(rest, &out);
  } else {
    if (arguments_) unfinished_call_ = UnfinishedCall::kArguments;
    out.text += rest;
  }
  return out;
}

void OutputParser::FinishCalls(const std::string& rest, OutputDelta* out) {
  if (arguments_) {
    unfinished_call_ = UnfinishedCall::kArguments;
    return;
  }
  const bool section = state_ == State::kInSection;
  const size_t text = out->text.size();
  bool parsed = false;
  if (streamed_calls_ > 0) {
    const size_t tag =
        section && !section_->close.empty() ? PartialTagOverlap(rest, section_->close) : 0;
    parsed = AddRemainder(absl::string_view(rest).substr(0, rest.size() - tag), out);
  } else {
    // A section that is cut off counts as calls if it parses, and as content otherwise.
    parsed = AddCalls(ParseCalls(rest), out);
    if (!parsed) absl::StrAppend(&out->text, section ? section_->open : "", rest);
  }
  if (parsed) return;
  unfinished_call_ = UnfinishedCall::kHead;
  if (options_.choice == ToolChoice::kRequired) out->text.resize(text);
}

}  // namespace espalier
