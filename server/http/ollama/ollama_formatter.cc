#include "server/http/ollama/ollama_formatter.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json/bounded_json.h"
#include "server/http/json_reader.h"
#include "server/http/openai_response.h"
#include "server/http/send_error.h"

namespace espalier::ollama {
namespace {

using json = nlohmann::ordered_json;

int64_t Nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

// Adds counts and durations. The time before the first step, in the queue, is where Ollama's server
// loads a model.
void AddMetrics(const v1::Usage& usage, json* object) {
  const double first = usage.seconds_to_first_token(), queued = usage.seconds_queued();
  json& out = *object;
  out["total_duration"] = Nanoseconds(usage.seconds());
  out["load_duration"] = Nanoseconds(queued);
  out["prompt_eval_count"] = usage.prompt_tokens();
  out["prompt_eval_duration"] = Nanoseconds(std::max(0.0, first - queued));
  out["eval_count"] = usage.completion_tokens();
  out["eval_duration"] = Nanoseconds(std::max(0.0, usage.seconds() - first));
}

}  // namespace

std::string TimeText(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d%ET%H:%M:%E*SZ", time, absl::UTCTimeZone());
}

json LoadedAnswer(const AnswerForm& form, absl::Time now) {
  json object = {{"model", form.model}, {"created_at", TimeText(now)}};
  if (form.chat) {
    object["message"] = {{"role", "assistant"}, {"content", ""}};
  } else {
    object["response"] = "";
  }
  object["done"] = true;
  object["done_reason"] = "load";
  return object;
}

OllamaFormatter::OllamaFormatter(AnswerForm form, const Clock* clock, bool streams)
    : ResponseFormatter(streams), form_(std::move(form)), clock_(clock) {}

size_t OllamaFormatter::CountValues(const v1::GenerateReply* reply, bool last) {
  if (reply == nullptr) return 0;
  const size_t logprobs = form_.logprobs ? static_cast<size_t>(reply->logprobs_size()) : 0;
  if (!streams()) values_collected_ += logprobs;
  if (form_.context) {
    values_collected_ += static_cast<size_t>(reply->prompt_tokens_size() + reply->tokens_size());
  }
  return (streams() ? logprobs : 0) + (last ? values_collected_ : 0);
}

json OllamaFormatter::ObjectOf(const Part& part) const {
  json object = {{"model", form_.model}, {"created_at", TimeText(clock_->Now())}};
  if (form_.chat) {
    json& message = object["message"] = {{"role", "assistant"}, {"content", part.text}};
    if (!part.thinking.empty()) message["thinking"] = part.thinking;
    if (!part.calls.empty()) message["tool_calls"] = part.calls;
  } else {
    object["response"] = part.text;
    if (!part.thinking.empty()) object["thinking"] = part.thinking;
  }
  if (!part.logprobs.empty()) object["logprobs"] = part.logprobs;
  object["done"] = false;
  return object;
}

void OllamaFormatter::AddCallPart(const v1::ToolCall& call) {
  if (call.id().empty()) {
    call_.mutable_arguments()->append(call.arguments());
    return;
  }
  CloseCall();
  call_open_ = true;
  call_ = call;
}

void OllamaFormatter::CloseCall() {
  if (!std::exchange(call_open_, false)) return;
  absl::StatusOr<json> arguments = ParseBoundedJson<json>(call_.arguments(), kRequestJson);
  // Models write nothing for functions without parameters.
  if (!arguments.ok() || !arguments->is_object()) arguments = json::object();
  pending_.calls.push_back(
      {{"id", call_.id()},
       {"function",
        {{"index", calls_++}, {"name", call_.name()}, {"arguments", *std::move(arguments)}}}});
}

void OllamaFormatter::Flush() {
  if (!streams() || pending_.empty()) return;
  AddEvent(absl::StrCat(openai::Dump(ObjectOf(pending_)), "\n"));
  pending_ = Part();
}

void OllamaFormatter::Add(int, const v1::GenerateReply& reply) {
  if (form_.context) {
    tokens_.insert(tokens_.end(), reply.prompt_tokens().begin(), reply.prompt_tokens().end());
    tokens_.insert(tokens_.end(), reply.tokens().begin(), reply.tokens().end());
  }
  if (form_.include_thinking) pending_.thinking += reply.reasoning();
  if (form_.logprobs) {
    for (const v1::TokenLogprobs& token : reply.logprobs()) {
      pending_.logprobs.push_back(openai::LogprobJson(token));
    }
  }
  InOrder(
      reply,
      [this](const std::string& text) {
        CloseCall();
        pending_.text += text;
      },
      [this](const v1::ToolCall& call) { AddCallPart(call); });
  Flush();
}

void OllamaFormatter::Finish(const v1::GenerateReply& last, int64_t) {
  over_ = true;
  const std::string& reason = last.finish_reason();
  if (reason == "tool_calls") CloseCall();
  Flush();
  object_ = ObjectOf(pending_);
  object_["done"] = true;
  object_["done_reason"] = reason == "length" ? "length" : "stop";
  if (form_.context) object_["context"] = tokens_;
  AddMetrics(last.usage(), &object_);
  if (streams()) AddEvent(absl::StrCat(openai::Dump(object_), "\n"));
}

void OllamaFormatter::Fail(const openai::Error& error) {
  over_ = true;
  if (streams()) AddEvent(absl::StrCat(MessageAlone(error), "\n"));
}

}  // namespace espalier::ollama
