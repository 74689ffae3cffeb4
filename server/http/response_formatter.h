// How an API writes the one answer of a request: a stream of events and a whole object, which come
// of the same steps.
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
  // Without `streams` no events are made.
  explicit ResponseFormatter(bool streams) : streams_(streams) {}
  virtual ~ResponseFormatter() = default;

  virtual void Queue() {}    // it waits, in the background
  virtual void Begin() = 0;  // it runs
  virtual void Add(const v1::GenerateReply& reply) = 0;
  // The end, once, by one of these. `finish_reason` is that of the last reply, which has been
  // added; one that was cancelled fails instead.
  virtual void Finish(const v1::GenerateReply& last, int64_t now_unix_seconds) = 0;
  virtual void Fail(const openai::Error& error) = 0;
  virtual void Cancel() = 0;

  virtual bool over() const = 0;
  virtual nlohmann::ordered_json Object() const = 0;  // as it is now

  bool streams() const { return streams_; }
  // Those that are new, each whole as it goes over the wire.
  std::vector<std::string> TakeEvents() { return std::exchange(events_, {}); }

 protected:
  void AddEvent(std::string event) { events_.push_back(std::move(event)); }

  // What a reply says, in the order in which it was said: a text behind a call is not its text.
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
