// A model loaded on workers, one program per rank. A session that has failed is never reused; the
// model is reloaded in a new one.
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
#include "serving/runner/model_runner.h"
#include "storage/folder_checkpoint_store.h"

namespace espalier {

// What serving on workers needs of the coordinator. All pointers outlive it.
struct ServingCluster {
  WorkerRegistry* workers = nullptr;
  Rendezvous* rendezvous = nullptr;
  WorkerDialer dial;
  const FolderCheckpointStore* data_folder = nullptr;  // the coordinator's
  // Durable and increasing; workers distinguish loads of one model by it.
  std::function<absl::StatusOr<uint64_t>()> next_attempt;
  absl::Duration load_timeout = absl::Minutes(30);
  // Clock for the backoff after failed loads.
  std::function<absl::Time()> now = [] { return absl::Now(); };
  // A longer step has failed. Leases reveal dead workers long before.
  absl::Duration step_timeout = absl::Minutes(5);
};

// An LLM and the SSMs that draft for it. They may share workers; the LLM takes precedence where
// there are too few. Thread-safe.
class ServingGroup {
 public:
  enum class LlmState { kUnloaded, kWaiting, kLoaded };  // kWaiting: found too few workers

  // `name`: as the LLM is served. `here`: it runs in this process.
  ServingGroup(std::string name, bool here)
      : name_(std::move(name)), llm_state_(here ? LlmState::kLoaded : LlmState::kUnloaded) {}

  const std::string& name() const { return name_; }
  // SSMs take workers only once the LLM is loaded, and release them while it waits.
  LlmState llm_state() const { return llm_state_; }
  void SetLlmState(LlmState llm_state) { llm_state_ = llm_state; }

 private:
  const std::string name_;
  std::atomic<LlmState> llm_state_;
};

// What is loaded on the workers.
struct RemoteModel {
  std::string name;                   // as served
  std::string folder;                 // of its files, in the coordinator's data folder
  std::vector<v1::Program> programs;  // by rank
  // Worker IDs by rank, used if all are available. Empty: the fastest available.
  std::vector<std::string> preferred;
  // Null: shares no workers.
  std::shared_ptr<ServingGroup> group;
  bool drafts = false;          // an SSM of the group
  bool prefers_shared = false;  // prefers the group's workers to idle ones
  WeightMap weights;
  // LoRA adapters: their folders in the data folder, and the parameters that they fill.
  std::vector<std::string> adapter_folders;
  std::map<std::string, std::vector<AdapterMatrix>> adapters;
  RunnerLimits limits;
  int max_output_rows = 0;
};

class ServingSession {
 public:
  // Assigns `members`, by rank, with `bytes` of each one's memory, until the session ends. Returns
  // the errors of WorkerRegistry::Assign. `cluster` and `model` must outlive it.
  static absl::StatusOr<std::unique_ptr<ServingSession>> Create(const ServingCluster& cluster,
                                                                const RemoteModel& model,
                                                                std::vector<Member> members,
                                                                int64_t bytes);
  ~ServingSession() { End(); }

  // Blocks until all ranks are ready for steps. Returns the error of the first rank that failed,
  // with the worker's name; Unavailable after Break.
  absl::Status Load();

  // Returns the workers' job ID, "serving/lm".
  static std::string JobId(const RemoteModel& model);

  // One step on all ranks, in two halves, called from one thread. Ranks receive steps as they begin
  // and run them in that order, so a pipeline's first stage need not wait for its last. BeginStep
  // returns Unavailable once the session is broken. EndStep, for the oldest open step, returns
  // InvalidArgument for a rejected batch; Unavailable, and breaks the session, if a worker is lost
  // or exceeds step_timeout.
  absl::Status BeginStep(const RunnerBatch& batch);
  absl::Status EndStep(RunnerOutput* logits);
  // Number of steps begun and not ended. Same thread.
  int open_steps() const { return static_cast<int>(open_.size()); }

  // Makes open and later steps fail with Unavailable and `reason`. Thread-safe.
  void Break(const std::string& reason);
  // Breaks the session, waits for the stepping thread, and releases the workers and their memory.
  // Thread-safe and idempotent.
  void End();
  // Breaks the session if a worker's lease has expired or a step takes too long.
  void Watch();
  // Returns why the session is broken, or "".
  std::string broken() const;

  const std::vector<Member>& members() const { return members_; }

 private:
  struct Rank {
    std::unique_ptr<WorkerClient> client;
    std::unique_ptr<ServingStream> stream;
  };
  // What EndStep needs to know of an open step.
  struct OpenStep {
    uint64_t number = 0;
    size_t rows = 0;  // rows with logits
    bool wants_hidden = false;
    std::vector<int32_t> row_outputs;
  };

  ServingSession(const ServingCluster& cluster, const RemoteModel& model,
                 std::vector<Member> members, uint64_t attempt);
  absl::Status LoadRank(size_t rank);
  // Returns Unavailable with the reason if the session is broken.
  absl::Status CheckNotBroken() const;
  // Breaks the session if `status` is Unavailable, and returns the session's reason then.
  absl::Status BreakIfUnavailable(absl::Status status);
  absl::Status Send(const RunnerBatch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(step_mutex_);
  bool ReadResult() ABSL_EXCLUSIVE_LOCKS_REQUIRED(step_mutex_);
  absl::Status Receive(const OpenStep& step, RunnerOutput* logits)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(step_mutex_);
  // Closes the rank's stream and returns its status.
  absl::Status Finish(size_t rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(step_mutex_);
  // Called when the stream of rank `first` broke. Returns Unavailable with the cause that all
  // ranks' statuses suggest.
  absl::Status DiagnoseFailure(size_t first) ABSL_EXCLUSIVE_LOCKS_REQUIRED(step_mutex_);
  std::string Describe(size_t rank) const;
  v1::Attempt AttemptOf(size_t rank) const;

  const ServingCluster& cluster_;
  const RemoteModel& model_;
  const std::vector<Member> members_;
  const uint64_t attempt_;
  size_t logits_rank_ = 0;
  std::vector<Rank> ranks_;  // clients are constant; streams need step_mutex_
  // Prefetches logits_rank_'s results if steps are concurrent. Null: EndStep reads the stream.
  std::unique_ptr<ResultPrefetcher> reader_ ABSL_GUARDED_BY(step_mutex_);
  uint64_t steps_ = 0;
  std::deque<OpenStep> open_;  // used by the stepping thread
  v1::ServingStep step_;       // these two are reused across steps
  v1::ServingResult result_;

  absl::Mutex step_mutex_;  // held during a step, and while the session starts and ends
  bool ended_ ABSL_GUARDED_BY(step_mutex_) = false;
  mutable absl::Mutex mutex_ ABSL_ACQUIRED_AFTER(step_mutex_);
  std::string broken_ ABSL_GUARDED_BY(mutex_);
  std::deque<absl::Time> step_started_ ABSL_GUARDED_BY(mutex_);  // of open steps
};

}  // namespace espalier
