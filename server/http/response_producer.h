// Produces the answer to one request of any generating API: feeds the engine's replies, of one or
// several prompts, to the API's ResponseFormatter and sends the result to the client and to
// watchers. A client's disconnect cancels its generation.
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
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "server/http/http_server.h"
#include "server/http/in_progress_response.h"
#include "server/http/response_formatter.h"
#include "server/http/send_error.h"
#include "server/http/serialization_thread.h"
#include "server/inference/requests/generation.h"

namespace espalier {

struct ResponseProducerOptions {
  std::unique_ptr<ResponseFormatter> formatter;
  int prompts = 1;  // whose last replies end the answer
  // Answers the client on acceptance; the generation survives its disconnect.
  bool background = false;
  ErrorFormatter error_formatter = &openai::ToJson;
  // Called at the end unless the response was dropped: the final object and, for a background
  // stream, all events. May be null; must not call the producer.
  std::function<void(nlohmann::ordered_json object, std::vector<std::string> events)> ended;
  size_t stored_values = 0;   // JSON values that `ended` visits in addition
  size_t envelope_bytes = 0;  // repeated in the first and last events
  const Clock* clock = nullptr;
  // Serializes large replies. Null: the engine's thread does.
  std::weak_ptr<SerializationThread> serialization_thread;
};

class ResponseProducer : public InProgressResponse,
                         public std::enable_shared_from_this<ResponseProducer> {
 public:
  // A background client is answered by Accept, any other by the first reply.
  ResponseProducer(ResponseProducerOptions options, std::shared_ptr<HttpResponder> responder);

  // The listener of the generation; or BatchListener of one with several prompts.
  GenerationListener Listener();
  BatchListener ListenerForPrompts();
  // Called once, with the outcome of the submission; sends its error. REQUIRES: the caller holds
  // the model.
  void Accept(absl::StatusOr<std::shared_ptr<Generation>> submitted);

  nlohmann::ordered_json Snapshot() override;
  bool streams() const override { return options_.formatter->streams(); }
  void Watch(std::shared_ptr<HttpResponder> responder, int64_t after) override;
  void Cancel() override;

 private:
  // Queues or runs OnReply, on the engine's thread.
  void Receive(int prompt, const absl::StatusOr<v1::GenerateReply>& reply, bool last_of_prompt);
  // Estimates the cost of OnReply, in JSON values.
  size_t CountValues(const absl::StatusOr<v1::GenerateReply>& reply, bool last);
  void OnReply(int prompt, const absl::StatusOr<v1::GenerateReply>& reply, bool last)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Before the first byte an error sets the status line, afterwards it is an event.
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Answers with an error status. Nothing is kept.
  void Refuse(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Reject(const absl::Status& status);
  // Sends new events in one write; see WriteEvents.
  void SendNewEvents() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Called at the end.
  void Conclude(bool keep) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CloseWatchers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnClientGone(const HttpResponder* responder);

  const ResponseProducerOptions options_;
  TaskSequence tasks_;  // replies, in order
  // Used by Receive.
  bool started_ = false;  // the first reply has come
  int prompts_ended_ = 0;

  // Set under the lock, which the end of a large answer holds for long.
  std::atomic<bool> concluded_ = false;

  absl::Mutex mutex_;
  ResponseFormatter& formatter_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> history_ ABSL_GUARDED_BY(mutex_);  // events of a background stream
  std::vector<std::shared_ptr<HttpResponder>> watchers_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Generation> generation_ ABSL_GUARDED_BY(mutex_);
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  // Until then, the client of a background response may still get an error status.
  bool accepted_ ABSL_GUARDED_BY(mutex_);
};

// Writes the stored events after number `after` to a stream that has begun.
void WriteEvents(const std::vector<std::string>& events, int64_t after, HttpResponder& responder);

// Sends status and headers of an event stream, or of a stream of another type.
void StartEventStream(HttpResponder& responder, const char* type = "text/event-stream");

}  // namespace espalier
