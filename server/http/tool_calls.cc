#include "server/http/tool_calls.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "server/http/json_reader.h"

namespace espalier::openai {
namespace {

using json = nlohmann::ordered_json;

constexpr absl::string_view kOpen = "<tool_call>";
constexpr absl::string_view kClose = "</tool_call>";
constexpr int kMaxDepth = 256;

// Length of the longest end of `text` that begins `word`.
size_t BeginningAtEnd(absl::string_view text, absl::string_view word) {
  for (size_t n = std::min(text.size(), word.size() - 1); n > 0; --n) {
    if (text.substr(text.size() - n) == word.substr(0, n)) return n;
  }
  return 0;
}

}  // namespace

ToolCallReader::ToolCallReader(const Request& request, std::string id)
    : choice_(request.tool_choice), named_(request.named_tool), id_(std::move(id)) {
  for (const Tool& tool : request.tools) names_.insert(tool.name);
  if (choice_ == ToolChoice::kNone) state_ = State::kText;
  if (choice_ == ToolChoice::kRequired) state_ = State::kWhole;
}

ToolCallReader::Output ToolCallReader::Append(const std::string& text) {
  Output out;
  if (choice_ == ToolChoice::kNone) {
    out.text = text;
    return out;
  }
  if (choice_ == ToolChoice::kNamed) {
    if (text.empty()) return out;
    ToolCall part{.index = 0, .arguments = text};
    if (next_index_ == 0) {
      part.id = absl::StrCat(id_, "-0");
      part.name = named_;
      next_index_ = 1;
    }
    out.calls.push_back(std::move(part));
    return out;
  }
  held_ += text;
  if (state_ == State::kUndecided) {
    const absl::string_view begun = absl::StripLeadingAsciiWhitespace(held_);
    if (begun.empty()) return out;
    state_ = begun[0] == '{' || begun[0] == '[' ? State::kWhole : State::kText;
  }
  if (state_ == State::kText || state_ == State::kInTag) ReadText(&out);
  return out;
}

void ToolCallReader::ReadText(Output* out) {
  for (;;) {
    if (state_ == State::kText) {
      // Blanks between calls are no text.
      if (after_call_) held_ = std::string(absl::StripLeadingAsciiWhitespace(held_));
      const size_t open = held_.find(std::string(kOpen));
      if (open == std::string::npos) {
        const size_t keep = BeginningAtEnd(held_, kOpen);
        if (held_.size() > keep) after_call_ = false;
        out->text += held_.substr(0, held_.size() - keep);
        held_.erase(0, held_.size() - keep);
        return;
      }
      out->text += held_.substr(0, open);
      held_.erase(0, open + kOpen.size());
      state_ = State::kInTag;
    }
    const size_t close = held_.find(std::string(kClose));
    if (close == std::string::npos) return;
    const std::string inside = held_.substr(0, close);
    held_.erase(0, close + kClose.size());
    after_call_ = ReadCalls(inside, out);
    if (!after_call_) absl::StrAppend(&out->text, kOpen, inside, kClose);
    state_ = State::kText;
  }
}

bool ToolCallReader::ReadCalls(const std::string& text, Output* out) {
  bool deep = false;
  const auto watch = [&](int depth, json::parse_event_t, json&) {
    deep = deep || depth > kMaxDepth;
    return !deep;
  };
  const json parsed = json::parse(text, watch, /*allow_exceptions=*/false);
  if (deep || !(parsed.is_object() || parsed.is_array()) || parsed.empty()) return false;
  std::vector<ToolCall> calls;
  const json list = parsed.is_array() ? parsed : json::array({parsed});
  for (const json& call : list) {
    if (!call.is_object() || !call.value("name", json()).is_string()) return false;
    const std::string name = call["name"].get<std::string>();
    const json arguments =
        call.contains("arguments") ? call["arguments"] : call.value("parameters", json());
    if (names_.count(name) == 0 || !(arguments.is_object() || arguments.is_string())) return false;
    const int index = next_index_ + static_cast<int>(calls.size());
    calls.push_back(
        {.index = index,
         .id = absl::StrCat(id_, "-", index),
         .name = name,
         .arguments = arguments.is_string() ? arguments.get<std::string>() : Dump(arguments)});
  }
  next_index_ += static_cast<int>(calls.size());
  for (ToolCall& call : calls) out->calls.push_back(std::move(call));
  return true;
}

ToolCallReader::Output ToolCallReader::Finish() {
  Output out;
  const std::string rest = std::exchange(held_, "");
  if (rest.empty() && state_ != State::kInTag) return out;
  if (state_ == State::kText || state_ == State::kUndecided) {
    out.text = rest;
  } else if (!ReadCalls(rest, &out)) {
    // Cut short: what there is of it, as it is.
    out.text = state_ == State::kInTag ? absl::StrCat(kOpen, rest) : rest;
  }
  return out;
}

}  // namespace espalier::openai
