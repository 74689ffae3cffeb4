// Formats one answer for an API: as a stream of events and as a whole object, both from the same
// calls. Implemented by ResponsesFormatter and MessagesFormatter, driven by ResponseProducer.
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

// Not thread-safe.
class ResponseFormatter {
 public:
  // Without `streams`, no events are made.
  explicit ResponseFormatter(bool streams) : streams_(streams) {}
  virtual ~ResponseFormatter() = default;

  virtual void Queue() {}    // a background response is queued
  virtual void Begin() = 0;  // generation starts
  virtual void Add(const v1::GenerateReply& reply) = 0;
  // Exactly one of the following ends it. Finish gets the last reply, which has been added; a
  // cancelled generation calls Fail instead.
  virtual void Finish(const v1::GenerateReply& last, int64_t now_unix_seconds) = 0;
  virtual void Fail(const openai::Error& error) = 0;
  virtual void Cancel() = 0;

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
