// One response from its submission to its end: what the engine says becomes items and events, for
// the client that waits, for those that watch, and for the store.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/clock.h"
#include "server/http/http_server.h"
#include "server/http/responses/response_answer.h"
#include "server/http/responses/response_store.h"
#include "server/inference/generation.h"

namespace espalier {

struct ResponseRunOptions {
  openai::ResponseHead head;
  openai::ItemIds ids;
  nlohmann::ordered_json input;  // items of the conversation
  std::string owner;
  bool stream = false;
  bool background = false;
  std::shared_ptr<ResponseStore> store;  // null: it is not kept
  const Clock* clock = nullptr;
};

class ResponseRun : public LiveResponse, public std::enable_shared_from_this<ResponseRun> {
 public:
  // A background response is answered by Accept; another one by what the engine says.
  ResponseRun(ResponseRunOptions options, std::shared_ptr<HttpResponder> responder);

  GenerationListener Listener();
  // Once, when it is submitted. REQUIRES: the caller holds the model.
  void Accept(std::shared_ptr<Generation> generation);

  nlohmann::ordered_json Snapshot() override;
  bool streams() const override { return options_.stream; }
  void Watch(std::shared_ptr<HttpResponder> responder, int64_t after) override;
  void Cancel() override;

 private:
  void On(const absl::StatusOr<proto::GenerateReply>& reply, bool last)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sends the events that are new.
  void Pass() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // After the end.
  void Settle(bool keep) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Release() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GoneAway(const HttpResponder* responder);

  const ResponseRunOptions options_;

  absl::Mutex mutex_;
  std::vector<std::string> events_;  // not yet sent; used under mutex_
  openai::ResponseAnswer answer_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> history_ ABSL_GUARDED_BY(mutex_);  // of a background stream
  std::vector<std::shared_ptr<HttpResponder>> watchers_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Generation> generation_ ABSL_GUARDED_BY(mutex_);
  std::string finish_reason_ ABSL_GUARDED_BY(mutex_);
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  // Until a background response is submitted its client may still get an error instead.
  bool accepted_ ABSL_GUARDED_BY(mutex_);
};

// Writes events after `after`, of those that were kept, to a stream that has begun.
void WriteEvents(const std::vector<std::string>& events, int64_t after, HttpResponder& responder);

// Headers and status of a stream of events.
void StartEventStream(HttpResponder& responder);

}  // namespace espalier
