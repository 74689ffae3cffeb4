// One answer from its submission to its end: what the engine says is written in the way of an API,
// for the client that waits and for those that watch.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "server/http/serialization_thread.h"
#include "server/http/response_formatter.h"
#include "server/http/completions_route.h"
#include "server/http/http_server.h"
#include "server/http/in_progress_response.h"
#include "server/inference/requests/generation.h"

namespace espalier {

struct ResponseProducerOptions {
  std::unique_ptr<ResponseFormatter> writer;
  // The client is answered when it is accepted, and may go away.
  bool background = false;
  ErrorFormatter error_formatter = &openai::ToJson;
  // It has ended and nobody threw it away: what it became, and its events if it is a background
  // stream. May be null; must not call the run.
  std::function<void(nlohmann::ordered_json object, std::vector<std::string> events)> ended;
  size_t stored_values = 0;  // of JSON, that `ended` looks at beside the answer
  size_t envelope_bytes = 0;   // that are written at the beginning and at the end
  const Clock* clock = nullptr;
  // Writes what is large, be it at the end. Null: the engine's thread does.
  std::weak_ptr<SerializationThread> serialization_thread;
};

class ResponseProducer : public InProgressResponse, public std::enable_shared_from_this<ResponseProducer> {
 public:
  // A background answer is told of by Accept; another one by what the engine says.
  ResponseProducer(ResponseProducerOptions options, std::shared_ptr<HttpResponder> responder);

  GenerationListener Listener();
  // Once, when it is submitted. REQUIRES: the caller holds the model.
  void Accept(std::shared_ptr<Generation> generation);

  nlohmann::ordered_json Snapshot() override;
  bool streams() const override { return options_.writer->streams(); }
  void Watch(std::shared_ptr<HttpResponder> responder, int64_t after) override;
  void Cancel() override;

 private:
  void OnReply(const absl::StatusOr<v1::GenerateReply>& reply, bool last)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sends the events that are new, in one piece: see WriteEvents.
  void SendNewEvents() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // After the end.
  void Conclude(bool keep) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CloseWatchers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnClientGone(const HttpResponder* responder);

  const ResponseProducerOptions options_;
  TaskSequence tasks_;                 // what the engine says
  std::atomic<size_t> values_seen_ = 0;    // of its log-probabilities, so far
  std::atomic<bool> started_ = false;  // the engine has said something

  absl::Mutex mutex_;
  ResponseFormatter& formatter_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> history_ ABSL_GUARDED_BY(mutex_);  // of a background stream
  std::vector<std::shared_ptr<HttpResponder>> watchers_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Generation> generation_ ABSL_GUARDED_BY(mutex_);
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  // Until a background answer is submitted its client may still get an error instead.
  bool accepted_ ABSL_GUARDED_BY(mutex_);
};

// Writes events after `after`, of those that were kept, to a stream that has begun.
void WriteEvents(const std::vector<std::string>& events, int64_t after, HttpResponder& responder);

// Headers and status of a stream of events.
void StartEventStream(HttpResponder& responder);

}  // namespace espalier
