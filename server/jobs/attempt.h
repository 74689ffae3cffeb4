// One attempt of a job on its assigned workers: plan, lower, load, run, checkpoint, evaluate,
// export. Reports events and its end to an observer; the job's state is decided elsewhere
// (job_lifecycle.h).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
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
#include "server/jobs/example_stream.h"
#include "server/jobs/prepare_job.h"
#include "server/jobs/rank_report_merger.h"
#include "server/jobs/record_schedule.h"
#include "server/jobs/validation_history.h"
#include "server/jobs/worker_client.h"
#include "server/jobs/worker_memory.h"
#include "server/membership/rendezvous.h"
#include "server/membership/worker_registry.h"
#include "server/recordings/recording_store.h"
#include "server/recordings/spool.h"
#include "server/store/job_store.h"
#include "storage/checkpoint_store.h"
#include "storage/dataset_roots.h"
#include "storage/folder_checkpoint_store.h"

namespace espalier {

// The coordinator's components that an attempt uses. All must outlive it.
struct AttemptTools {
  const OpRegistry* registry = nullptr;
  ArtifactStore* artifacts = nullptr;
  CalibratedPlanner* planner = nullptr;
  WorkerRegistry* workers = nullptr;
  Rendezvous* rendezvous = nullptr;
  FileSystem* files = nullptr;
  CheckpointStore* checkpoints = nullptr;
  RecordingStore* recordings = nullptr;  // null: no job is recorded
  Spool* spool = nullptr;                // of recordings; null: there is none
  // The coordinator's data folder, of which workers read initial values, models and streams.
  FolderCheckpointStore* data_folder = nullptr;
  WorkerDialer dial;
  const DatasetRoots* dataset_roots = nullptr;
};

struct AttemptTask {
  JobRecord record;  // with spec
  int32_t attempt = 0;
  std::vector<Member> members;  // by rank
  WorkerMemory enough;          // workers of the last attempt that found a plan
  // To resume from, within the job's folder of the checkpoint store; empty: none.
  std::string checkpoint;
  ValidationHistory validations;          // up to that checkpoint
  std::shared_ptr<ExampleStream> stream;  // of a dataset of format STREAM; else null
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
  // As in JobEvent.validation.
  virtual void OnValidation(const std::string& job_id, int32_t attempt,
                            const v1::StepReport& validation) = 0;
  // Called when the checkpoint's manifest is durable.
  virtual void OnCheckpoint(const std::string& job_id, int32_t attempt,
                            const StoredCheckpoint& checkpoint) = 0;
  // Called when a checkpoint was left out because the disk is full.
  virtual void OnCheckpointSkipped(const std::string& job_id, int32_t attempt,
                                   const std::string& reason) = 0;
  // Called when the model of a job has no room on the disk. Returns whether there is more now.
  virtual bool MakeRoom(const std::string& job_id) { return false; }
  virtual void OnMessage(const std::string& job_id, const v1::JobMessage& message) = 0;
};

class Attempt {
 public:
  Attempt(const AttemptTools& tools, AttemptTask task, AttemptObserver* observer);
  virtual ~Attempt();

  // Runs the attempt. Blocks until it is over and no worker is busy with it, except workers whose
  // lease has expired.
  virtual AttemptEnd Run();

  // Thread-safe; does not block. The attempt ends as kStopped unless it had already ended.
  virtual void Stop();
  // Tells the attempt not to wait for a worker whose lease has expired. Thread-safe; does not
  // block.
  virtual void WorkerLost(const std::string& worker_id, const std::string& reason);
  // Asks for a checkpoint of what the ranks have trained, before the next regular one. The observer
  // is told. Thread-safe; does not block.
  virtual void RequestCheckpoint();
  // Tells the attempt that its stream has more examples, or has ended. Thread-safe; does not block.
  void ExamplesPushed();

  const std::vector<Member>& members() const { return task_.members; }
  std::vector<v1::Device> devices() const;  // by rank

 private:
  // After one rank has failed, wait this long for another rank to report the root cause.
  static constexpr absl::Duration kRootCauseWait = absl::Milliseconds(500);

  struct Rank {
    std::unique_ptr<WorkerClient> client;
    bool saves = true;  // part of each checkpoint
    std::string lost;   // reason if the worker is lost; empty: alive
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

  // These return the attempt's end, or nullopt if it continues.
  std::optional<AttemptEnd> Load(const LoweredPlan& lowered, const LoadFolders& folders)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs all steps that are left, with the validations between them, until the last one or an early
  // stop. Then the checkpoint that is to be exported is durable.
  std::optional<AttemptEnd> Train(const PreparedJob& prepared, int64_t first)
      ABSL_LOCKS_EXCLUDED(mutex_, report_mutex_);
  // Of a stream: waits until the examples of the next step are there, or the stream has ended,
  // which makes `*total`, the number of steps, that of its batches. Fails the job when nobody
  // pushes any.
  std::optional<AttemptEnd> WaitForExamples(int64_t* total)
      ABSL_LOCKS_EXCLUDED(mutex_, report_mutex_);
  // The end of an attempt for whose next step no examples came.
  AttemptEnd NoExamples(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_, report_mutex_);
  // Of a stream: names the examples of a run's steps, of which it has at most those that are there.
  void NameExamples(v1::RunRequest* steps) const;
  // Runs steps on all ranks. The request has neither attempt nor checkpoint folder.
  std::optional<AttemptEnd> RunSteps(v1::RunRequest steps) ABSL_LOCKS_EXCLUDED(mutex_);
  // Asks the ranks, of which none has done less than `least` steps, for the checkpoint that was
  // requested, of the same step of each.
  absl::Status AskForCheckpoint(int64_t least) ABSL_LOCKS_EXCLUDED(mutex_);
  // Asks the ranks for a checkpoint after `at` steps, or, if one of them is faster, at least
  // `ahead` steps later than it. Returns after how many.
  absl::StatusOr<int64_t> NameCheckpoint(int64_t at, int64_t ahead) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same without the lock, which it releases meanwhile. `again`: when to call this again, if
  // not all ranks could be asked.
  void HandleCheckpointRequest(int64_t least, absl::Time* again)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Asks the ranks for the checkpoint that the schedule wants. Releases the lock meanwhile.
  void HandleDueCheckpoint() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sends the request to all ranks that save. Returns the most steps that one of them has done.
  absl::StatusOr<int64_t> AskRanks(int64_t steps_done) ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes note of the checkpoints that the ranks have begun by the end of a run.
  void NoteBegun(const v1::RunRequest& run);
  // Whether one of those is not durable yet.
  bool IsWriting() ABSL_LOCKS_EXCLUDED(report_mutex_);
  // Whether a checkpoint is requested; forgets that.
  bool TakeCheckpointRequest() ABSL_LOCKS_EXCLUDED(mutex_);
  // Adds the evaluation after steps_done_ to the validations. If it is the best and is to be kept,
  // its checkpoint is durable afterwards.
  std::optional<AttemptEnd> RecordValidation() ABSL_LOCKS_EXCLUDED(mutex_, report_mutex_);
  // Makes a checkpoint of the ranks' present state durable, unless there is one. While the disk is
  // too full for it, waits and tries again. REQUIRES: the ranks have done `steps_done` steps, or
  // there is a checkpoint of as many or more.
  std::optional<AttemptEnd> WriteCheckpoint(int64_t steps_done)
      ABSL_LOCKS_EXCLUDED(mutex_, report_mutex_);
  // If the best validation's model is to be kept, checks that its checkpoint is there.
  std::optional<AttemptEnd> CheckBestIsThere();
  AttemptEnd Finish(const Graph& model);
  // Values on held-out examples with the parameters that are exported.
  std::map<std::string, double> EvaluationOfExported() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(report_mutex_);
  // Steps done at the checkpoint that is exported.
  int64_t ExportedSteps() const;
  // Whether the result of the evaluation after so many steps is known.
  bool IsEvaluated(int64_t steps_done) ABSL_LOCKS_EXCLUDED(report_mutex_);
  // The end of an attempt whose checkpoint has turned out to be damaged.
  AttemptEnd CheckpointDamaged(const StoredCheckpoint& damaged, const absl::Status& damage);
  // The same of the best validation's checkpoint: goes back to before it.
  AttemptEnd BestDamaged(int64_t best_steps, const absl::Status& damage);
  // If a rank's error may come from the checkpoint's files, reads them: a worker may also just not
  // see them.
  AttemptEnd BlameCheckpoint(AttemptEnd end) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until a full disk may have room again. Returns true once the attempt is to stop.
  bool WaitForRoom() ABSL_LOCKS_EXCLUDED(mutex_);
  // Drops a checkpoint that is incomplete because the disk is full.
  void SkipCheckpoint(const RankReportMerger::Checkpoint& checkpoint, const std::string& reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(report_mutex_);
  // Name in the checkpoint store.
  std::string CheckpointFolder(const std::string& within_job) const;
  CalibratedPlanner::CalibrationReport Calibrate(const Graph& graph, const v1::Plan& plan,
                                                 const std::vector<v1::Program>& programs)
      ABSL_LOCKS_EXCLUDED(report_mutex_);

  void OnEvent(size_t rank, const v1::RunEvent& event) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status HandleEvent(size_t rank, const v1::RunEvent& event)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(report_mutex_);
  void FailRank(size_t rank, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool is_recorded() const;
  // Plans the checkpoints of a recorded job, if it has no fixed period. `restored`: how long the
  // ranks took to load.
  void BeginSchedule(const PreparedJob& prepared, int64_t first_step, absl::Duration restored)
      ABSL_LOCKS_EXCLUDED(report_mutex_);
  // Tells the schedule of a step that all ranks have done.
  void ScheduleStep(const v1::StepReport& step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(report_mutex_)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Tells the schedule what a checkpoint has cost.
  void ScheduleCost(const RankReportMerger::Checkpoint& checkpoint)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(report_mutex_);
  // Makes durable what this attempt's steps are computed with.
  std::optional<AttemptEnd> RecordAttempt(const v1::Plan& plan, int64_t first_step)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Adds the digests of the job's data to its recording, if they are not there. Reads whole files.
  void RecordDigests(const std::function<bool()>& stopped);
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
  int64_t steps_done_ = 0;                          // by all ranks; set between their runs
  absl::Time said_waiting_ = absl::InfinitePast();  // that it waits for examples
  std::set<int64_t> named_;  // steps done, of checkpoints that the ranks were asked for
  int64_t begun_ = 0;        // steps done, of the last checkpoint that the ranks have begun
  ValidationHistory validations_;

  // Held while an event is merged, written and reported to the observer. Stop and WorkerLost never
  // take it, as the observer may call them meanwhile.
  absl::Mutex report_mutex_;
  RankReportMerger merge_ ABSL_GUARDED_BY(report_mutex_);
  v1::StepReport evaluation_ ABSL_GUARDED_BY(report_mutex_);    // the last; step: steps done
  StoredCheckpoint checkpoint_ ABSL_GUARDED_BY(report_mutex_);  // the last durable one
  // Steps done at the last one for which there was no room; -1: none.
  int64_t skipped_steps_ ABSL_GUARDED_BY(report_mutex_) = -1;
  // Of checkpoints that the recording takes; nothing: it takes none of its own.
  std::optional<RecordSchedule> schedule_ ABSL_GUARDED_BY(report_mutex_);
  // By rank; empty if the rank has reported none.
  std::vector<std::vector<OperatorTime>> operator_times_ ABSL_GUARDED_BY(report_mutex_);

  mutable absl::Mutex mutex_ ABSL_ACQUIRED_AFTER(report_mutex_);
  absl::CondVar changed_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool rank_failed_ ABSL_GUARDED_BY(mutex_) = false;  // some rank failed or was lost
  bool checkpoint_requested_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t due_at_ ABSL_GUARDED_BY(mutex_) = 0;       // steps done; as schedule_ says; 0: none
  std::vector<v1::RecordedAttempt::Rank> recorded_;  // by rank; set while they load
  std::vector<Rank> ranks_;                          // fields except `client` guarded by mutex_
};

}  // namespace espalier
