// Formats one answer for an API: as a stream of events and as a whole object, both from the same
// calls. Implemented once per API (CompletionsFormatter, ResponsesFormatter, MessagesFormatter,
// OllamaFormatter), driven by ResponseProducer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "espalier/v1/inference.pb.h"
#include "server/http/openai_error.h"

namespace espalier {

// Not thread-safe, except that CountValues may run beside the other calls.
class ResponseFormatter {
 public:
  // Without `streams`, no events are made.
  explicit ResponseFormatter(bool streams) : streams_(streams) {}
  virtual ~ResponseFormatter() = default;

  // Estimates how many JSON values the calls for a reply will serialize: Add and, if it is the
  // `last` of all, Finish. Null: Fail. Called for all replies in order, ahead of those calls and
  // from one thread at a time; shares no state with them.
  virtual size_t CountValues(const v1::GenerateReply* reply, bool last) { return 0; }

  // Content-Type of the stream.
  virtual const char* stream_type() const { return "text/event-stream"; }

  virtual void Queue() {}    // a background response is queued
  virtual void Begin() = 0;  // generation starts
  // `prompt`: of which of the request's prompts; 0 where the API has only one.
  virtual void Add(int prompt, const v1::GenerateReply& reply) = 0;
  // Exactly one of the following ends it. Finish gets the last reply of all, which has been added.
  // A generation that the server cancelled calls Fail instead, unless shows_cancellation().
  virtual void Finish(const v1::GenerateReply& last, int64_t now_unix_seconds) = 0;
  virtual void Fail(const openai::Error& error) = 0;
  virtual void Cancel() = 0;

  // Whether the API has a finish reason for a generation that the server cancelled.
  virtual bool shows_cancellation() const { return false; }
  virtual bool over() const = 0;
  virtual nlohmann::ordered_json Object() const = 0;  // in its present state

  bool streams() const { return streams_; }
  // Returns and clears the new events, each as it goes over the wire.
  std::vector<std::string> TakeEvents() { return std::exchange(events_, {}); }

 protected:
  void AddEvent(std::string event) { events_.push_back(std::move(event)); }

  // Visits text and calls of a reply in their original order: text after a call is a block of its
  // own.
  template <typename OnText, typename OnCall>
  static void InOrder(const v1::GenerateReply& reply, OnText on_text, OnCall on_call) {
    const std::string& text = reply.text();
    size_t at = 0;
    const auto say_until = [&](size_t end) {
      if (end > at) on_text(text.substr(at, end - at));
      at = std::max(at, end);
    };
    for (const v1::ToolCall& call : reply.tool_calls()) {
      say_until(std::min(static_cast<size_t>(call.text_before()), text.size()));
      on_call(call);
    }
    say_until(text.size());
  }

 private:
  const bool streams_;
  std::vector<std::string> events_;
};

}  // namespace espalier
