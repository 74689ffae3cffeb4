// Runs a serving engine on a thread of its own and brings its events to whoever asked. A second
// thread tells those for whom there is no room, those who have gone before the engine took them,
// and, where a step hangs because a worker does, those whose time is over or who do not want their
// answers any more: they need not wait for the step.
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
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "serving/chat_template/chat_template.h"
#include "serving/engine/engine.h"
#include "serving/tokenizer/generation_config.h"

namespace espalier {

// The payload of a ResourceExhausted status: after how many seconds to come again, as decimal text.
inline constexpr char kRetryAfterPayload[] = "espalier/retry-after-seconds";

// Everything that one engine stands on.
struct EngineParts {
  // Devices and the like. First, because members are destroyed last to first and the rest uses it.
  std::vector<std::shared_ptr<void>> keep_alive;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat;  // null: the plain form
  GenerationConfig generation;
  std::unique_ptr<ModelRunner> llm;
  std::vector<std::unique_ptr<ModelRunner>> ssms;
  int64_t kv_cache_bytes = 0;  // of all of them
};

// Thread-safe.
class AsyncEngine {
 public:
  // Called on a thread of the engine, one call at a time, in order; must not block. The last event
  // has `finished` set. A request that was not admitted gets one event with an error (kError).
  using Listener = std::function<void(const RequestEvent&)>;
  using Ticket = int64_t;

  static absl::StatusOr<std::unique_ptr<AsyncEngine>> Create(EngineParts parts,
                                                            EngineOptions options);
  // Ends every request with Unavailable and joins the thread.
  ~AsyncEngine();

  // Returns at once. Once the engine ends, the error that it ends with. Requests of one prompt share
  // it until the engine takes them. If as many as may wait came during one step, the event with the
  // error comes at once, to the last one that this one outranks if there is such a one.
  using SharedPrompt = std::shared_ptr<const std::vector<int>>;
  absl::StatusOr<Ticket> Submit(SharedPrompt prompt, RequestOptions options, Listener listener);
  absl::StatusOr<Ticket> Submit(std::vector<int> prompt, RequestOptions options,
                                Listener listener) {
    return Submit(std::make_shared<const std::vector<int>>(std::move(prompt)), std::move(options),
                  std::move(listener));
  }
  // The listener gets its last event, unless the request is over already. One that the engine has
  // not taken yet gives its place to the next at once.
  void Cancel(Ticket ticket);

  // From now on none is taken; whoever is there gets this error in its last event, once the step
  // that runs is over or hangs. Returns at once; only the first call counts.
  void End(absl::Status why);

  // Requests of one client that the queue has room for at once, if nobody else is there.
  int max_concurrent() const { return max_concurrent_; }
  int max_queue() const { return max_queue_; }
  // Requests that have not ended.
  int open() const;
  // Seconds after which a request that the queue had no place for may find one: what one request
  // has taken of late to leave; at least 1.
  int RetryAfterSeconds() const;

  const Tokenizer& tokenizer() const { return *parts_.tokenizer; }
  const ChatTemplate* chat() const { return parts_.chat.get(); }  // null: the plain form
  const GenerationConfig& generation() const { return parts_.generation; }
  std::shared_ptr<const Tokenizer> shared_tokenizer() const { return parts_.tokenizer; }
  int context() const { return engine_->context(); }
  int concurrent_steps() const { return engine_->concurrent_steps(); }
  int64_t kv_cache_bytes() const { return parts_.kv_cache_bytes; }
  int embedding_size() const { return engine_->embedding_size(); }  // 0: there are none
  EngineStatistics statistics() const;                              // as of the last step

 private:
  struct Command {
    Ticket ticket;
    bool cancel = false;
    SharedPrompt prompt;
    RequestOptions options;
    Listener listener;
    absl::Time arrival;  // a request
  };
  struct Open {
    Ticket ticket;
    Listener listener;  // null: it has been answered, and only the engine does not know yet
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
  std::unique_ptr<Engine> engine_;  // of the thread, but for const members that never change

  // Held while listeners are called; taken before mutex_.
  absl::Mutex delivery_mutex_;
  absl::flat_hash_map<RequestId, Open> open_ ABSL_GUARDED_BY(delivery_mutex_);
  absl::flat_hash_map<Ticket, RequestId> ids_ ABSL_GUARDED_BY(delivery_mutex_);

  mutable absl::Mutex mutex_;
  std::vector<Command> inbox_ ABSL_GUARDED_BY(mutex_);
  std::vector<Rejection> rejections_ ABSL_GUARDED_BY(mutex_);  // that nobody has told yet
  int submitted_ ABSL_GUARDED_BY(mutex_) = 0;            // of the inbox: requests
  absl::Time step_began_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();  // none runs
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status end_status_ ABSL_GUARDED_BY(mutex_);   // if it is stopping
  bool loop_ended_ ABSL_GUARDED_BY(mutex_) = false;  // no further step begins
  Ticket next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  int open_count_ ABSL_GUARDED_BY(mutex_) = 0;
  double mean_seconds_ ABSL_GUARDED_BY(mutex_) = 0;  // of an answer, of late
  EngineStatistics statistics_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_, watcher_;
};

}  // namespace espalier
