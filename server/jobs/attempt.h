// One attempt of a job on its assigned workers: plan, lower, load, run, checkpoint, evaluate,
// export. Reports events and its end to an observer; the job's state is decided elsewhere
// (job_lifecycle.h).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/file_system.h"
#include "planner/planner.h"
#include "server/artifacts/artifact_store.h"
#include "server/jobs/attempt_end.h"
#include "server/jobs/calibrated_planner.h"
#include "server/jobs/checkpoint_folders.h"
#include "server/jobs/rank_report_merger.h"
#include "server/jobs/worker_client.h"
#include "server/jobs/worker_memory.h"
#include "server/membership/rendezvous.h"
#include "server/membership/worker_registry.h"
#include "server/store/job_store.h"
#include "storage/dataset_roots.h"

namespace espalier {

// The coordinator's components that an attempt uses. All must outlive it.
struct AttemptTools {
  const OpRegistry* registry = nullptr;
  ArtifactStore* artifacts = nullptr;
  CalibratedPlanner* planner = nullptr;
  WorkerRegistry* workers = nullptr;
  Rendezvous* rendezvous = nullptr;
  FileSystem* files = nullptr;
  WorkerDialer dial;
  const DatasetRoots* dataset_roots = nullptr;
};

struct AttemptTask {
  JobRecord record;  // with spec
  int32_t attempt = 0;
  std::vector<Member> members;  // by rank
  WorkerMemory enough;          // workers of the last attempt that found a plan
  std::string checkpoint_root;  // of the job
  std::string checkpoint;       // to resume from, within checkpoint_root; empty: none
};

struct PlanFacts {
  v1::Plan plan;
  int64_t parameters = 0;
  int64_t total_steps = 0;
  double tokens_per_step = 0;
};

// Called from the attempt's threads, one call at a time.
class AttemptObserver {
 public:
  virtual ~AttemptObserver() = default;
  virtual void OnPlanned(const std::string& job_id, int32_t attempt, const PlanFacts& facts) = 0;
  virtual void OnRunning(const std::string& job_id, int32_t attempt) = 0;
  virtual void OnStep(const std::string& job_id, int32_t attempt, const v1::StepReport& report) = 0;
  // Called when the checkpoint's manifest is durable.
  virtual void OnCheckpoint(const std::string& job_id, int32_t attempt,
                            const StoredCheckpoint& checkpoint) = 0;
  // Called when a checkpoint was left out because the disk is full.
  virtual void OnCheckpointSkipped(const std::string& job_id, int32_t attempt,
                                   const std::string& reason) = 0;
  virtual void OnMessage(const std::string& job_id, const std::string& message) = 0;
};

class Attempt {
 public:
  Attempt(const AttemptTools& tools, AttemptTask task, AttemptObserver* observer);
  ~Attempt();

  // Runs the attempt. Blocks until it is over and no worker is busy with it, except workers whose
  // lease has expired.
  AttemptEnd Run();

  // Thread-safe; does not block. The attempt ends as kStopped unless it had already ended.
  void Stop();
  // Tells the attempt not to wait for a worker whose lease has expired. Thread-safe; does not
  // block.
  void WorkerLost(const std::string& worker_id, const std::string& reason);

  const std::vector<Member>& members() const { return task_.members; }
  std::vector<v1::Device> devices() const;  // by rank

 private:
  struct Rank {
    std::unique_ptr<WorkerClient> client;
    std::string lost;  // reason if the worker is lost; empty: alive
    bool done = false;
    absl::Status status;
    std::optional<size_t> unreachable;  // rank that it does not reach, or that does not reach it
    int64_t peak_bytes = 0;
  };

  bool stopping() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return stop_;
  }
  // From which the ranks load; empty: none.
  struct LoadFolders {
    std::string init;    // LoadProgramRequest.init_folder
    std::string values;  // LoadProgramRequest.values_folder
  };

  std::string Describe(size_t rank) const;
  v1::Attempt AttemptMessage(size_t rank) const;

  // Load, RunSteps and WriteLastCheckpoint return the attempt's end, or nullopt if it continues.
  std::optional<AttemptEnd> Load(const LoweredPlan& lowered, const LoadFolders& folders)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs steps [first, last). `checkpoint_first`: writes a checkpoint before them.
  std::optional<AttemptEnd> RunSteps(int64_t first, int64_t last, bool evaluate,
                                     bool checkpoint_first) ABSL_LOCKS_EXCLUDED(mutex_);
  // While the disk was too full for the checkpoint of the last step, waits and tries again.
  std::optional<AttemptEnd> WriteLastCheckpoint(int64_t total_steps) ABSL_LOCKS_EXCLUDED(mutex_);
  AttemptEnd Finish(const Graph& model, int64_t total_steps);
  // The end of an attempt whose checkpoint has turned out to be damaged.
  AttemptEnd CheckpointDamaged(const StoredCheckpoint& damaged, const absl::Status& damage);
  // If a rank's error may come from the checkpoint's files, reads them: a worker may also just not
  // see them.
  AttemptEnd BlameCheckpoint(AttemptEnd end) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until a full disk may have room again. Returns true once the attempt is to stop.
  bool WaitForRoom() ABSL_LOCKS_EXCLUDED(mutex_);
  // Drops a checkpoint that is incomplete because the disk is full.
  void SkipCheckpoint(const RankReportMerger::Checkpoint& checkpoint, const std::string& reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(report_mutex_);
  std::string CheckpointFolder(const std::string& within_job) const;
  CalibratedPlanner::CalibrationReport Calibrate(const Graph& graph, const v1::Plan& plan,
                                                 const std::vector<v1::Program>& programs)
      ABSL_LOCKS_EXCLUDED(report_mutex_);

  void OnEvent(size_t rank, const v1::RunEvent& event) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status HandleEvent(size_t rank, const v1::RunEvent& event)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(report_mutex_);
  void FailRank(size_t rank, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Frees the memory of a finished program, which ranks keep until they are told.
  void UnloadRanks();
  void StopRanks() ABSL_LOCKS_EXCLUDED(mutex_);
  AttemptEnd EndOfRanks() ABSL_LOCKS_EXCLUDED(mutex_);

  const AttemptTools tools_;
  const AttemptTask task_;
  AttemptObserver* const observer_;
  bool measure_communication_ = false;
  bool pad_evaluation_ = false;
  std::string graph_fingerprint_;

  // Held while an event is merged, written and reported to the observer. Stop and WorkerLost never
  // take it, as the observer may call them meanwhile.
  absl::Mutex report_mutex_;
  RankReportMerger merge_ ABSL_GUARDED_BY(report_mutex_);
  std::map<std::string, double> evaluation_ ABSL_GUARDED_BY(report_mutex_);
  StoredCheckpoint checkpoint_ ABSL_GUARDED_BY(report_mutex_);      // the last durable one
  bool checkpoint_skipped_ ABSL_GUARDED_BY(report_mutex_) = false;  // the one after it
  // By rank; empty if the rank has reported none.
  std::vector<std::vector<OperatorTime>> operator_times_ ABSL_GUARDED_BY(report_mutex_);

  mutable absl::Mutex mutex_ ABSL_ACQUIRED_AFTER(report_mutex_);
  absl::CondVar changed_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool rank_failed_ ABSL_GUARDED_BY(mutex_) = false;  // some rank failed or was lost
  std::vector<Rank> ranks_;                           // fields except `client` guarded by mutex_
};

}  // namespace espalier
