// A model loaded on workers, one program on each: from its loading to its end. A session that has
// failed once is of no more use; the model is then loaded again in another one.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "models/lora.h"
#include "models/model.h"
#include "server/inference/remote/result_prefetcher.h"
#include "server/jobs/worker_client.h"
#include "server/membership/rendezvous.h"
#include "server/membership/worker_registry.h"
#include "serving/engine/model_runner.h"

namespace espalier {

// What serving on workers needs of the coordinator; all outlive it.
struct ServingCluster {
  WorkerRegistry* workers = nullptr;
  Rendezvous* rendezvous = nullptr;
  WorkerDialer dial;
  // Durable, growing: by it workers tell one loading of a model from the next.
  std::function<absl::StatusOr<uint64_t>()> next_attempt;
  absl::Duration load_timeout = absl::Minutes(30);
  // For the pauses after loads that have failed.
  std::function<absl::Time()> now = [] { return absl::Now(); };
  // A step that takes longer has failed. Dead workers are noticed long before, by their leases.
  absl::Duration step_timeout = absl::Minutes(5);
};

// Models that are served together, an LLM and the small ones that draft for it: they may have
// workers in common, and where there are too few for all the LLM has them. Thread-safe.
class ServingGroup {
 public:
  enum class LlmState { kUnloaded, kWaiting, kLoaded };  // kWaiting: for workers, in vain so far

  // As the LLM is served; `here`: in this process.
  ServingGroup(std::string name, bool here)
      : name_(std::move(name)), llm_state_(here ? LlmState::kLoaded : LlmState::kUnloaded) {}

  const std::string& name() const { return name_; }
  // Of the LLM. Small models take workers only once it is loaded, and leave them if it waits.
  LlmState llm_state() const { return llm_state_; }
  void SetLlmState(LlmState llm_state) { llm_state_ = llm_state; }

 private:
  const std::string name_;
  std::atomic<LlmState> llm_state_;
};

// What the workers get.
struct RemoteModel {
  std::string name;                      // as it is served
  std::string folder;                    // of its files, which the workers see, too
  std::vector<v1::Program> programs;  // by rank
  // Ids of the workers that it was placed on, by rank; taken if they are all there. Empty: the
  // fastest that are.
  std::vector<std::string> preferred;
  // Null: it has its workers for itself.
  std::shared_ptr<ServingGroup> group;
  bool drafts = false;        // in the group: it is not the LLM
  bool prefers_shared = false;  // workers of the group rather than idle ones
  WeightMap weights;
  // Of low-rank adapters: where they lie, and the parameters that they fill.
  std::vector<std::string> adapter_folders;
  std::map<std::string, std::vector<AdapterMatrix>> adapters;
  RunnerLimits limits;
  int max_output_rows = 0;
};

class ServingSession {
 public:
  // Takes `members`, by rank, with so many bytes of each one's memory, until the session ends;
  // errors as of WorkerRegistry::Assign. `cluster` and `model` outlive it.
  static absl::StatusOr<std::unique_ptr<ServingSession>> Create(const ServingCluster& cluster,
                                                                const RemoteModel& model,
                                                                std::vector<Member> members,
                                                                int64_t bytes);
  ~ServingSession() { End(); }

  // Blocks until all ranks are ready for steps. The error is that of the rank that failed first,
  // with the worker's name; Unavailable after Break.
  absl::Status Load();

  // "serving/lm": what the workers' job is called.
  static std::string JobId(const RemoteModel& model);

  // One step on all ranks, in two halves; of one thread. The ranks get each step as it begins, and
  // run them in that order: a pipeline's first stage need not wait for its last.
  // Begin: Unavailable once the session is broken. End, of the oldest step that has begun:
  // InvalidArgument for a batch that is refused; Unavailable once a worker is lost, or does not
  // answer within the step's time: the session is then broken.
  absl::Status BeginStep(const RunnerBatch& batch);
  absl::Status EndStep(RunnerOutput* logits);
  // That have begun and not ended; of the same thread.
  int open_steps() const { return static_cast<int>(open_.size()); }

  // From any thread: steps end soon with Unavailable and `reason`, and so does every later one.
  void Break(const std::string& reason);
  // Breaks it, waits for the thread that steps, and lets the workers go: their memory is free, and
  // they are idle again. From any thread, any number of times.
  void End();
  // Breaks the session if a worker's lease is over or a step takes too long.
  void Watch();
  // Why the session is broken; empty: it is not.
  std::string broken() const;

  const std::vector<Member>& members() const { return members_; }

 private:
  struct Rank {
    std::unique_ptr<WorkerClient> client;
    std::unique_ptr<ServingStream> stream;
  };
  // What is still to be known of a step when its results come.
  struct OpenStep {
    uint64_t number = 0;
    size_t rows = 0;  // whose logits are wanted
    bool wants_hidden = false;
    std::vector<int32_t> row_outputs;
  };

  ServingSession(const ServingCluster& cluster, const RemoteModel& model,
                 std::vector<Member> members, uint64_t attempt);
  absl::Status LoadRank(size_t rank);
  // The reason why the session is broken, if it is.
  absl::Status CheckNotBroken() const;
  // What a half of a step comes to: Unavailable breaks the session.
  absl::Status BreakIfUnavailable(absl::Status status);
  absl::Status Send(const RunnerBatch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(step_mutex_);
  bool ReadResult() ABSL_EXCLUSIVE_LOCKS_REQUIRED(step_mutex_);
  absl::Status Receive(const OpenStep& step, RunnerOutput* logits)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(step_mutex_);
  // How the rank's stream ended; nobody reads it any more.
  absl::Status Finish(size_t rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(step_mutex_);
  // Unavailable: the stream of rank `first` broke. Why, by what all ranks say.
  absl::Status DiagnoseFailure(size_t first) ABSL_EXCLUSIVE_LOCKS_REQUIRED(step_mutex_);
  std::string Describe(size_t rank) const;
  v1::Attempt AttemptOf(size_t rank) const;

  const ServingCluster& cluster_;
  const RemoteModel& model_;
  const std::vector<Member> members_;
  const uint64_t attempt_;
  size_t logits_rank_ = 0;
  std::vector<Rank> ranks_;  // clients never change; streams are of who holds step_mutex_
  // Of the stream with the logits, where steps overlap; null: whoever ends a step reads it.
  std::unique_ptr<ResultPrefetcher> reader_ ABSL_GUARDED_BY(step_mutex_);
  uint64_t steps_ = 0;
  std::deque<OpenStep> open_;  // of the thread that steps
  v1::ServingStep step_;    // these two: memory that serves again
  v1::ServingResult result_;

  absl::Mutex step_mutex_;  // held by a step, and while the session begins and ends
  bool ended_ ABSL_GUARDED_BY(step_mutex_) = false;
  mutable absl::Mutex mutex_ ABSL_ACQUIRED_AFTER(step_mutex_);
  std::string broken_ ABSL_GUARDED_BY(mutex_);
  std::deque<absl::Time> step_started_ ABSL_GUARDED_BY(mutex_);  // of the open steps
};

}  // namespace espalier
