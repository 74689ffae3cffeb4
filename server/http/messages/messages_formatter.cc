#include "server/http/messages/messages_formatter.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json/bounded_json.h"
#include "server/http/json_reader.h"
#include "server/http/messages/messages_error.h"
#include "server/http/openai_response.h"

namespace espalier::anthropic {
namespace {

using json = nlohmann::ordered_json;

// input_tokens excludes cached tokens, which have their own field.
json UsageJson(const v1::Usage& usage) {
  json out = {{"input_tokens", usage.prompt_tokens() - usage.cached_tokens()},
              {"cache_read_input_tokens", usage.cached_tokens()},
              {"cache_creation_input_tokens", 0},
              {"output_tokens", usage.completion_tokens()},
              {"speculation", openai::SpeculationJson(usage)}};
  if (usage.has_reasoning_tokens()) {
    out["output_tokens_details"] = {{"thinking_tokens", usage.reasoning_tokens()}};
  }
  return out;
}

}  // namespace

MessagesFormatter::MessagesFormatter(MessageHead head, bool streams)
    : ResponseFormatter(streams), head_(std::move(head)) {}

void MessagesFormatter::Emit(const char* type, json fields) {
  if (!streams()) return;
  json event = {{"type", type}};
  event.update(fields);
  AddEvent(absl::StrCat("event: ", type, "\ndata: ", openai::Dump(event), "\n\n"));
}

bool MessagesFormatter::IsOpen(const char* type) const {
  return open_ && content_.back()["type"] == type;
}

void MessagesFormatter::Open(json block) {
  Close();
  open_ = true;
  text_.clear();
  content_.push_back(std::move(block));
  Emit("content_block_start", {{"index", content_.size() - 1}, {"content_block", content_.back()}});
}

void MessagesFormatter::AddDelta(const char* delta_type, const char* field,
                                 const std::string& text) {
  text_ += text;
  if (!streams()) return;
  Emit("content_block_delta",
       {{"index", content_.size() - 1}, {"delta", {{"type", delta_type}, {field, text}}}});
}

void MessagesFormatter::Close() {
  if (!std::exchange(open_, false)) return;
  json& block = content_.back();
  if (block["type"] == "tool_use") {
    // A truncated call has an empty input; stop_reason shows it.
    absl::StatusOr<json> input = ParseBoundedJson<json>(text_, kRequestJson);
    block["input"] = input.ok() && input->is_object() ? *std::move(input) : json::object();
  } else {
    block[block["type"] == "text" ? "text" : "thinking"] = text_;
  }
  Emit("content_block_stop", {{"index", content_.size() - 1}});
}

void MessagesFormatter::AddText(const std::string& text) {
  if (!IsOpen("text")) Open({{"type", "text"}, {"text", ""}});
  AddDelta("text_delta", "text", text);
}

void MessagesFormatter::AddCall(const v1::ToolCall& call) {
  if (!call.id().empty()) {
    Open({{"type", "tool_use"},
          {"id", call.id()},
          {"name", call.name()},
          {"input", json::object()}});
  }
  if (!call.arguments().empty()) AddDelta("input_json_delta", "partial_json", call.arguments());
}

void MessagesFormatter::Add(int, const v1::GenerateReply& reply) {
  if (!std::exchange(begun_, true)) {
    usage_ = {{"input_tokens", reply.prompt_tokens_size()}, {"output_tokens", 0}};
    if (streams()) Emit("message_start", {{"message", Object()}});
  }
  if (!reply.reasoning().empty() && head_.include_thinking) {
    // Clients require the field, although nothing is signed.
    if (!IsOpen("thinking")) Open({{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
    AddDelta("thinking_delta", "thinking", reply.reasoning());
  }
  InOrder(
      reply, [this](const std::string& text) { AddText(text); },
      [this](const v1::ToolCall& call) { AddCall(call); });
}

void MessagesFormatter::Finish(const v1::GenerateReply& last, int64_t) {
  const std::string& reason = last.finish_reason();
  Close();
  usage_ = UsageJson(last.usage());
  if (reason == "tool_calls") {
    stop_reason_ = "tool_use";
  } else if (reason == "length") {
    stop_reason_ = last.usage().completion_tokens() < head_.max_tokens
                       ? "model_context_window_exceeded"
                       : "max_tokens";
  } else if (!last.stop_string().empty()) {
    stop_reason_ = "stop_sequence";
    stop_sequence_ = last.stop_string();
  } else {
    stop_reason_ = "end_turn";
  }
  over_ = true;
  Emit("message_delta",
       {{"delta", {{"stop_reason", stop_reason_}, {"stop_sequence", stop_sequence_}}},
        {"usage", usage_}});
  Emit("message_stop", json::object());
}

void MessagesFormatter::Fail(const openai::Error& error) {
  over_ = true;
  if (streams()) AddEvent(absl::StrCat("event: error\ndata: ", ErrorJson(error), "\n\n"));
}

json MessagesFormatter::Object() const {
  return {{"id", head_.id},
          {"type", "message"},
          {"role", "assistant"},
          {"model", head_.model},
          {"content", content_},
          {"stop_reason", stop_reason_},
          {"stop_sequence", stop_sequence_},
          {"usage", usage_}};
}

}  // namespace espalier::anthropic
