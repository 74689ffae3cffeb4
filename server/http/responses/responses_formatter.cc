#include "server/http/responses/responses_formatter.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/http/json_reader.h"
#include "server/http/openai_response.h"

namespace espalier::openai {
namespace {

using json = nlohmann::ordered_json;

json UsageJson(const v1::Usage& usage) {
  return {{"input_tokens", usage.prompt_tokens()},
          {"input_tokens_details",
           {{"cached_tokens", usage.cached_tokens()},
            // Prompt tokens that missed the KV cache are cached afterwards.
            {"cache_write_tokens", usage.prompt_tokens() - usage.cached_tokens()}}},
          {"output_tokens", usage.completion_tokens()},
          {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens()}}},
          {"total_tokens", usage.prompt_tokens() + usage.completion_tokens()},
          {"speculation", SpeculationJson(usage)}};
}

// The API defines only a few error codes.
const char* CodeOf(const Error& error) {
  if (error.http_status == 429) return "rate_limit_exceeded";
  return error.http_status >= 500 ? "server_error" : "invalid_prompt";
}

}  // namespace

ResponsesFormatter::ResponsesFormatter(ResponseHead head, ItemIds ids, bool streams)
    : ResponseFormatter(streams), head_(std::move(head)), ids_(std::move(ids)) {}

void ResponsesFormatter::Emit(const char* type, json fields) {
  if (!streams()) return;
  // Sequence numbers start at 0.
  json event = {{"type", type}, {"sequence_number", sequence_++}};
  event.update(fields);
  AddEvent(absl::StrCat("event: ", type, "\ndata: ", Dump(event), "\n\n"));
}

void ResponsesFormatter::EmitResponse(const char* type) {
  if (streams()) Emit(type, {{"response", Object()}});
}

size_t ResponsesFormatter::CountValues(const v1::GenerateReply* reply, bool last) {
  const size_t listed = reply != nullptr ? static_cast<size_t>(reply->logprobs_size()) : 0;
  values_seen_ += listed;
  // The last event repeats the whole answer. A call closes the text before it, which the closing
  // event repeats.
  const bool repeats = last || (reply != nullptr && reply->tool_calls_size() > 0);
  return repeats ? values_seen_ : listed;
}

void ResponsesFormatter::Queue() {
  status_ = "queued";
  EmitResponse("response.created");
  EmitResponse("response.queued");
}

void ResponsesFormatter::Begin() {
  if (status_ != "queued") EmitResponse("response.created");
  status_ = "in_progress";
  EmitResponse("response.in_progress");
}

json ResponsesFormatter::OpenPart() const {
  if (open_ == Open::kReasoning) return {{"type", "reasoning_text"}, {"text", text_}};
  json part = {{"type", "output_text"}, {"text", text_}, {"annotations", json::array()}};
  if (head_.with_logprobs) part["logprobs"] = logprobs_;
  return part;
}

json ResponsesFormatter::OpenItemNow(const char* status) const {
  json item = output_.back();
  item["status"] = status;
  if (open_ == Open::kCall) {
    item["arguments"] = text_;
  } else {
    item["content"] = json::array({OpenPart()});
  }
  return item;
}

json ResponsesFormatter::Place(bool part) const {
  json fields = {{"item_id", output_.back()["id"]}, {"output_index", output_.size() - 1}};
  if (part) fields["content_index"] = 0;
  return fields;
}

void ResponsesFormatter::OpenItem(Open kind, json item) {
  CloseItem("completed");
  open_ = kind;
  text_.clear();
  logprobs_ = json::array();
  output_.push_back(std::move(item));
  if (!streams()) return;
  Emit("response.output_item.added",
       {{"output_index", output_.size() - 1}, {"item", output_.back()}});
  if (kind == Open::kCall) return;
  json fields = Place(true);
  fields["part"] = OpenPart();
  Emit("response.content_part.added", std::move(fields));
}

void ResponsesFormatter::CloseItem(const char* status) {
  if (open_ == Open::kNone) return;
  output_.back() = OpenItemNow(status);
  if (streams()) {
    json done = Place(open_ != Open::kCall);
    if (open_ == Open::kCall) {
      done["name"] = output_.back()["name"];
      done["arguments"] = text_;
      Emit("response.function_call_arguments.done", std::move(done));
    } else {
      json part = done;
      part["part"] = OpenPart();
      done["text"] = text_;
      if (open_ == Open::kMessage) done["logprobs"] = logprobs_;
      Emit(open_ == Open::kMessage ? "response.output_text.done" : "response.reasoning_text.done",
           std::move(done));
      Emit("response.content_part.done", std::move(part));
    }
    Emit("response.output_item.done",
         {{"output_index", output_.size() - 1}, {"item", output_.back()}});
  }
  open_ = Open::kNone;
}

void ResponsesFormatter::AddReasoning(const std::string& text) {
  if (open_ != Open::kReasoning) {
    OpenItem(Open::kReasoning, {{"id", ids_.New("rs_")},
                                {"type", "reasoning"},
                                {"summary", json::array()},
                                {"content", json::array()},
                                {"status", "in_progress"}});
  }
  text_ += text;
  if (!streams()) return;
  json fields = Place(true);
  fields["delta"] = text;
  Emit("response.reasoning_text.delta", std::move(fields));
}

std::string ResponsesFormatter::WaitingBytes() const {
  std::string bytes;
  for (const v1::TokenLogprobs& token : waiting_) bytes += token.text();
  return bytes;
}

void ResponsesFormatter::SkipWaiting(const std::string& bytes) {
  const size_t at = WaitingBytes().find(bytes, skipped_);
  if (at != std::string::npos) skipped_ = at + bytes.size();
}

void ResponsesFormatter::KeepWaiting(size_t count) {
  if (waiting_.size() <= count) return;
  const size_t before = WaitingBytes().size();
  waiting_.erase(waiting_.begin(), waiting_.end() - static_cast<int64_t>(count));
  skipped_ -= std::min(skipped_, before - WaitingBytes().size());
}

// The first tokens of a message may begin with bytes that are not shown (reasoning, a call, a
// space), and their markers, or those of a later call, may look like the text.
void ResponsesFormatter::AlignLogprobs(const std::string& text, bool last) {
  const std::string bytes = WaitingBytes();
  size_t begin = hidden_ && last ? bytes.rfind(text) : bytes.find(text, skipped_);
  if (begin == std::string::npos || begin < skipped_) begin = skipped_;
  size_t first = 0, start = 0;
  while (first < waiting_.size() && start + waiting_[first].text().size() <= begin) {
    start += waiting_[first++].text().size();
  }
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<int64_t>(first));
  waiting_at_ = static_cast<int64_t>(start) - static_cast<int64_t>(begin);
  skipped_ = 0;
}

// Takes the waiting tokens that begin within the text so far. Held-back text and stop strings are
// not part of it.
json ResponsesFormatter::TakeLogprobs() {
  json out = json::array();
  size_t taken = 0;
  for (; taken < waiting_.size() && waiting_at_ < static_cast<int64_t>(text_.size()); ++taken) {
    out.push_back(LogprobJson(waiting_[taken]));
    waiting_at_ += static_cast<int64_t>(waiting_[taken].text().size());
  }
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<int64_t>(taken));
  return out;
}

void ResponsesFormatter::AddText(const std::string& text, bool last) {
  if (open_ != Open::kMessage) {
    OpenItem(Open::kMessage, {{"id", ids_.New("msg_")},
                              {"type", "message"},
                              {"status", "in_progress"},
                              {"role", "assistant"},
                              {"content", json::array()}});
    AlignLogprobs(text, last);
    hidden_ = false;
  }
  text_ += text;
  json logprobs = TakeLogprobs();
  if (streams()) {
    json fields = Place(true);
    fields["delta"] = text;
    fields["logprobs"] = logprobs;
    Emit("response.output_text.delta", std::move(fields));
  }
  logprobs_.insert(logprobs_.end(), logprobs.begin(), logprobs.end());
}

void ResponsesFormatter::AddCall(const v1::ToolCall& call) {
  if (!call.id().empty()) {
    OpenItem(Open::kCall, {{"id", ids_.New("fc_")},
                           {"type", "function_call"},
                           {"status", "in_progress"},
                           {"call_id", call.id()},
                           {"name", call.name()},
                           {"arguments", ""}});
  }
  if (call.arguments().empty()) return;
  text_ += call.arguments();
  if (!streams()) return;
  json fields = Place(false);
  fields["delta"] = call.arguments();
  Emit("response.function_call_arguments.delta", std::move(fields));
}

void ResponsesFormatter::Add(int, const v1::GenerateReply& reply) {
  if (head_.with_logprobs) {
    waiting_.insert(waiting_.end(), reply.logprobs().begin(), reply.logprobs().end());
  }
  if (!reply.reasoning().empty()) {
    hidden_ = true;
    if (head_.include_reasoning) AddReasoning(reply.reasoning());
    SkipWaiting(reply.reasoning());
  }
  int calls = 0;
  bool said = false;  // text is the last part of the reply
  InOrder(
      reply,
      [&](const std::string& text) {
        AddText(text, calls == reply.tool_calls_size());
        said = true;
      },
      [&](const v1::ToolCall& call) {
        AddCall(call);
        SkipWaiting(call.arguments());
        hidden_ = true;
        said = false;
        ++calls;
      });
  // The last tokens of this reply may belong to text that is held back.
  if (!said && (calls > 0 || !reply.reasoning().empty()))
    KeepWaiting(static_cast<size_t>(reply.logprobs_size()));
}

void ResponsesFormatter::End(const char* status, const char* item_status, const char* event) {
  CloseItem(item_status);
  status_ = status;
  over_ = true;
  EmitResponse(event);
}

void ResponsesFormatter::Finish(const v1::GenerateReply& last, int64_t now_unix_seconds) {
  usage_ = UsageJson(last.usage());
  const bool cut_by_length = last.finish_reason() == "length";
  // A client executes the calls of a completed response. If a stop string or token cut a call off,
  // the finish reason is not "tool_calls"; the API has no reason for it.
  const bool cut_call = open_ == Open::kCall && last.finish_reason() != "tool_calls";
  if (cut_by_length || cut_call) {
    if (cut_by_length) incomplete_ = {{"reason", "max_output_tokens"}};
    const bool whole_call = open_ == Open::kCall && json::accept(text_);
    End("incomplete", whole_call ? "completed" : "incomplete", "response.incomplete");
  } else {
    completed_at_ = now_unix_seconds;
    End("completed", "completed", "response.completed");
  }
}

void ResponsesFormatter::Fail(const Error& error) {
  error_ = {{"code", CodeOf(error)}, {"message", error.message}};
  End("failed", "incomplete", "response.failed");
}

// The API has no event for it: the stream just ends.
void ResponsesFormatter::Cancel() {
  CloseItem("incomplete");
  status_ = "cancelled";
  over_ = true;
}

json ResponsesFormatter::Object() const {
  json object = {{"id", head_.id},
                 {"object", "response"},
                 {"created_at", head_.created_unix_seconds},
                 {"completed_at", completed_at_},
                 {"status", status_},
                 {"error", error_},
                 {"incomplete_details", incomplete_},
                 {"model", head_.model},
                 {"output", output_},
                 {"usage", usage_}};
  if (open_ != Open::kNone) object["output"].back() = OpenItemNow("in_progress");
  object.update(head_.echo);
  return object;
}

}  // namespace espalier::openai
