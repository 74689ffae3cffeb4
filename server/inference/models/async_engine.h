// Runs a serving engine on its own thread and delivers its events to the requests' listeners. A
// second thread answers requests that need not wait for the step: those that the full queue
// rejects, those cancelled before the engine took them, and, if a step hangs because of a worker,
// those cancelled or past their deadline.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "serving/chat_template/chat_template.h"
#include "serving/engine/engine.h"
#include "serving/tokenizer/generation_config.h"

namespace espalier {

// Payload of a ResourceExhausted status: seconds after which to retry, as decimal text.
inline constexpr char kRetryAfterPayload[] = "espalier/retry-after-seconds";

// What an engine runs on.
struct EngineParts {
  // Devices etc. First member, so that it is destroyed last: the rest uses it.
  std::vector<std::shared_ptr<void>> keep_alive;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat;  // null: the plain template
  GenerationConfig generation;
  std::string tokenizer_config;  // text of tokenizer_config.json; may be empty
  absl::Status similarity;       // why the similarity of embeddings means nothing; OK: it does
  std::unique_ptr<ModelRunner> llm;
  std::vector<std::unique_ptr<ModelRunner>> ssms;
  int64_t kv_cache_bytes = 0;  // of all models
};

// Thread-safe.
class AsyncEngine {
 public:
  // Called on a thread of this class, one call at a time, in order; must not block. The last event
  // has `finished` set. A rejected request gets one event with an error (kError).
  using Listener = std::function<void(const RequestEvent&)>;
  using Ticket = int64_t;

  static absl::StatusOr<std::unique_ptr<AsyncEngine>> Create(EngineParts parts,
                                                             EngineOptions options);
  // Ends all requests with Unavailable and joins the threads.
  ~AsyncEngine();

  // Submits a request; returns at once. Returns the status of End after End. Requests with the same
  // prompt share it until the engine takes them. If `max_queue` requests have already come during
  // one step, rejects one at once with an error event: the lowest-priority, latest one below this
  // one's priority, or else this one.
  using SharedPrompt = std::shared_ptr<const std::vector<int>>;
  absl::StatusOr<Ticket> Submit(SharedPrompt prompt, RequestOptions options, Listener listener);
  absl::StatusOr<Ticket> Submit(std::vector<int> prompt, RequestOptions options,
                                Listener listener) {
    return Submit(std::make_shared<const std::vector<int>>(std::move(prompt)), std::move(options),
                  std::move(listener));
  }
  // Cancels a request; its listener gets its last event, unless the request has ended. A request
  // that the engine has not taken yet frees its place in the queue at once.
  void Cancel(Ticket ticket);

  // Accepts no more requests; open ones get this error in their last event, once the running step
  // ends or hangs. Returns at once. Only the first call counts.
  void End(absl::Status why);

  // Number of requests that one client can submit without a rejection, if there are no other
  // clients.
  int max_concurrent() const { return max_concurrent_; }
  int max_queue() const { return max_queue_; }
  // Number of requests that have not ended.
  int open() const;
  // Estimated seconds until the queue has a free place, from the recent mean duration of a request;
  // at least 1.
  int RetryAfterSeconds() const;

  const Tokenizer& tokenizer() const { return *parts_.tokenizer; }
  const ChatTemplate* chat() const { return parts_.chat.get(); }  // null: the plain template
  const GenerationConfig& generation() const { return parts_.generation; }
  const std::string& tokenizer_config() const { return parts_.tokenizer_config; }
  const absl::Status& similarity() const { return parts_.similarity; }
  std::shared_ptr<const Tokenizer> shared_tokenizer() const { return parts_.tokenizer; }
  int context() const { return engine_->context(); }
  int concurrent_steps() const { return engine_->concurrent_steps(); }
  int64_t kv_cache_bytes() const { return parts_.kv_cache_bytes; }
  int embedding_size() const { return engine_->embedding_size(); }  // 0: none
  EngineStatistics statistics() const;                              // as of the last step

 private:
  struct Command {
    Ticket ticket;
    bool cancel = false;
    SharedPrompt prompt;
    RequestOptions options;
    Listener listener;
    absl::Time arrival;  // of a request
  };
  struct Open {
    Ticket ticket;
    Listener listener;  // null: already answered; the engine does not know yet
    absl::Time deadline;
  };

  AsyncEngine(EngineParts parts, std::unique_ptr<Engine> engine, int max_requests, int max_queue);
  absl::Status WithRetryAfter(absl::Status status) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run();
  void Execute(Command command);
  void Dispatch();
  using Rejection = std::pair<Listener, absl::Status>;
  void Watch();
  void CollectExpired(std::vector<Rejection>* answers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(delivery_mutex_, mutex_);
  void DeliverWithoutEngine() ABSL_EXCLUSIVE_LOCKS_REQUIRED(delivery_mutex_);
  int DelaySeconds() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasRejections() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return loop_ended_ || !rejections_.empty();
  }
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !inbox_.empty();
  }

  EngineParts parts_;
  const int max_requests_;
  const int max_queue_;
  const int max_concurrent_;
  std::unique_ptr<Engine> engine_;  // used by thread_, except for immutable members

  // Held while listeners run. Acquired before mutex_.
  absl::Mutex delivery_mutex_;
  absl::flat_hash_map<RequestId, Open> open_ ABSL_GUARDED_BY(delivery_mutex_);
  absl::flat_hash_map<Ticket, RequestId> ids_ ABSL_GUARDED_BY(delivery_mutex_);

  mutable absl::Mutex mutex_;
  std::vector<Command> inbox_ ABSL_GUARDED_BY(mutex_);
  std::vector<Rejection> rejections_ ABSL_GUARDED_BY(mutex_);  // not delivered yet
  int submitted_ ABSL_GUARDED_BY(mutex_) = 0;                  // requests in the inbox
  // infinite: no step runs
  absl::Time step_began_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status end_status_ ABSL_GUARDED_BY(mutex_);  // once stopping
  bool loop_ended_ ABSL_GUARDED_BY(mutex_) = false;  // no more steps
  Ticket next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  int open_count_ ABSL_GUARDED_BY(mutex_) = 0;
  double mean_seconds_ ABSL_GUARDED_BY(mutex_) = 0;  // moving average of a request's duration
  EngineStatistics statistics_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_, watcher_;
};

}  // namespace espalier
