// Runs all training jobs: accepts them, keeps their records, assigns workers in the order of
// job_queue.h, runs their attempts, and answers queries. Everything acknowledged to a client is
// durable. What an event costs does not depend on how many jobs wait or are over.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/net/caller.h"
#include "server/artifacts/artifact_store.h"
#include "server/jobs/attempt.h"
#include "server/jobs/cut_off_hosts.h"
#include "server/jobs/example_stream.h"
#include "server/jobs/fair_share.h"
#include "server/jobs/job_deletion_listener.h"
#include "server/jobs/job_index.h"
#include "server/jobs/job_lifecycle.h"
#include "server/jobs/job_queue.h"
#include "server/jobs/pushed_examples.h"
#include "server/jobs/recent_tensors.h"
#include "server/jobs/unfinished_jobs.h"
#include "server/jobs/validation_history.h"
#include "server/jobs/worker_memory.h"
#include "server/metrics/metrics.h"
#include "server/recordings/retention.h"
#include "server/recordings/run_names.h"
#include "server/store/idempotency.h"
#include "server/store/job_store.h"

namespace espalier {

struct JobRunnerOptions {
  std::string input_folder;  // kCheckpointsFolder in the data folder, absolute
  // False: input_folder is lost with this coordinator, so jobs with a STREAM are refused.
  bool keeps_pushed_examples = true;
  JobPolicy policy;
  absl::Duration recovery_grace_period = absl::Seconds(10);  // see CoordinatorOptions
  // An attempt runs at least this long before it is given up for one on more workers.
  absl::Duration grow_after = absl::Seconds(10);
  // What is left of a job must take this long for a new attempt on more workers to be worth it.
  absl::Duration grow_if_left = absl::Seconds(20);
  FairShareOptions fair_share;
  // How long a job whose time limit is reached may take for its last checkpoint.
  absl::Duration time_limit_grace = absl::Seconds(60);
  // Checkpoints of a recorded job that take more are thinned; see RecordOptions.max_bytes.
  int64_t record_bytes = int64_t{16} << 30;
  // If those of all jobs take more, the oldest ones of jobs that are over go; 0: no limit.
  int64_t recordings_bytes = 0;
  // Of the disk with the checkpoints, of which recordings leave a part free; null: there is none
  // here.
  std::function<DiskRoom()> disk;
  // Makes an attempt; null: an Attempt. For simulations.
  std::function<std::unique_ptr<Attempt>(const AttemptTools&, AttemptTask, AttemptObserver*)>
      new_attempt;
};

// The error for an unknown job.
absl::Status JobNotFound(const std::string& job_id);
// Removes what is as large as a message may be, and its submitter has.
void StripSpec(v1::Job* job);
// Workers that a job's first attempt needs for its imported plan or pipeline; 0: any number.
size_t PlannedWorkers(const v1::SearchOptions& search);

// Thread-safe.
class JobRunner : public AttemptObserver {
 public:
  // All pointers must outlive the runner.
  JobRunner(JobRunnerOptions options, AttemptTools tools, JobStore* store, const Clock* clock,
            Metrics* metrics);
  ~JobRunner();

  // Is asked and told of deletions; must outlive the calls of Delete. Call before Start.
  void SetDeletionListener(JobDeletionListener* listener) { deletion_listener_ = listener; }

  // Loads the jobs of the store. Those that were active are RECOVERING.
  absl::Status Start();
  // Stops the attempts, writes pending records and joins all threads. Jobs continue after the next
  // Start.
  void Stop();

  // Called when workers joined, left or became idle.
  void WorkersChanged();

  // The job belongs to the caller's owner; if that is empty, to nobody.
  absl::Status Submit(const v1::SubmitRequest& request, const Caller& caller,
                      v1::SubmitReply* reply);
  // Owner of a job; nothing for an unknown id.
  std::optional<std::string> OwnerOf(const std::string& job_id) const;
  // The jobs that `run` names, of those that the caller may see (RunNames::Find).
  absl::StatusOr<std::vector<RunName>> FindRuns(absl::string_view run, RunVersions versions,
                                                const Caller& caller) const;
  // Owner of a job that is not over and will write this artifact; nothing if there is none.
  std::optional<std::string> OwnerOfOutput(const std::string& artifact) const;
  absl::Status DryRun(const v1::DryRunRequest& request, v1::DryRunReply* reply);
  absl::Status Get(const v1::GetJobRequest& request, v1::GetJobReply* reply);
  // Lists those that the caller may see.
  absl::Status List(const v1::ListJobsRequest& request, const Caller& caller,
                    v1::ListJobsReply* reply) const;
  absl::Status Cancel(const v1::CancelRequest& request, v1::CancelReply* reply);
  absl::Status Resume(const v1::ResumeRequest& request, v1::ResumeReply* reply);
  absl::Status Update(const v1::UpdateJobRequest& request, const Caller& caller,
                      v1::UpdateJobReply* reply);
  // Waits some seconds for the workers of a job that was just cancelled.
  absl::Status Delete(const v1::DeleteJobRequest& request, v1::DeleteJobReply* reply);
  // Has a running job write a checkpoint now, and waits for it. `cancelled` is polled several times
  // a second.
  absl::Status Checkpoint(const v1::CheckpointRequest& request,
                          const std::function<bool()>& cancelled, v1::CheckpointReply* reply);
  // Whether PushExamples may bring this job examples now; its errors otherwise.
  absl::Status CheckTakesExamples(const std::string& job_id) const;
  // `cancelled` is polled several times a second.
  absl::Status PushExamples(const std::string& job_id, PushedExamples examples,
                            const std::function<bool()>& cancelled, v1::PushExamplesReply* reply);
  // Sends the job's record, its reports and messages so far, then new ones as they come. Recent
  // reports have their tensors, older ones only their values. Returns when the job is over, `send`
  // returns false, `cancelled` returns true (polled several times a second) or on Stop.
  absl::Status Watch(const v1::WatchRequest& request,
                     const std::function<bool(const v1::JobEvent&)>& send,
                     const std::function<bool()>& cancelled);

  // Adds to a job's log, if the job is there. Does not wait until it is durable.
  void AddMessage(const std::string& job_id, const v1::JobMessage& message);
  // The spool has copied all checkpoints of a job: those stay that its limits allow.
  void OnSpooled(const std::string& job_id);

  std::map<std::string, int> CountByState(const Caller& caller) const;  // of jobs it may see
  // Artifacts that jobs which are not over read when they are planned again, and those that replays
  // of recorded jobs read.
  std::vector<ArtifactUse> ArtifactsInUse() const;
  // Waiting jobs that all decisions have looked at, for tests of what a decision costs.
  int64_t visited_waiting_jobs() const {
    absl::MutexLock lock(&mutex_);
    return queue_.visited();
  }

 private:
  static constexpr absl::Duration kStoreRetry = absl::Seconds(1);
  static constexpr size_t kRecentTensorBytes = 64 << 20;

  // How many checkpoints of a recording are to go.
  enum class Thinning {
    kToLimits,  // as many as RecordOptions says
    kOut,       // about every second one
    kAll,       // of a job that has SUCCEEDED; otherwise all but the last two and the best
  };

  struct Job : std::enable_shared_from_this<Job> {
    int64_t number = 0;
    JobRecord record;  // without spec.graph, spec.search.imported and plan
    JobLifecycle life;
    JobWrite pending;  // not yet durable
    v1::Plan plan;     // while it is not yet durable
    ValidationHistory validations;
    bool dirty = false;    // it has changes that are not durable (MarkDirty)
    bool writing = false;  // these are being written, without mutex_
    bool deleted = false;
    std::string counted_as;  // state, in the metrics
    bool counted_paused = false;
    absl::Time retry_at = absl::InfinitePast();
    int64_t version = 0;     // of the durable record; watchers wait for a change
    int workers_before = 0;  // of the last attempt; a recovering job waits for as many
    // It was queued when the coordinator was started: takes workers once others may have joined.
    bool waits_for_workers = false;
    absl::Time workers_since = absl::InfiniteFuture();  // any are idle, while it waits for more
    absl::Time running_since = absl::InfiniteFuture();
    int waits_for = 0;   // workers, as its log says; 0: it does not wait for a number
    int parked_for = 0;  // workers that there must be before it is looked at again
    absl::Time idle_since = absl::InfiniteFuture();  // no worker is, while it is the next to start
    bool says_it_waits = false;                      // its log does
    bool moving = false;  // the attempt was stopped for one on other workers
    absl::Time drain_asked_at = absl::InfinitePast();  // for a checkpoint before workers leave
    int64_t drain_asked_steps = 0;                     // done at that time
    WorkerMemory enough;                               // of the last attempt that had a plan
    std::vector<WorkerMemory> insufficient;            // of later attempts that found no plan
    size_t imported_for = 0;  // workers of its imported plan; 0: none or not known yet
    // Workers that its first attempt needs, for an imported plan or a pipeline; nothing: not known
    // yet.
    std::optional<size_t> planned;
    bool has_plan = false;              // of an imported one
    double predicted_step_seconds = 0;  // by its plan
    int devices = 0;                    // that it holds
    absl::Time charged_until;           // if it holds any
    double ran_seconds = 0;             // Job.running_seconds
    double device_seconds = 0;          // Job.device_seconds
    bool limit_asked = false;           // for the checkpoint before the end by the time limit
    absl::Time limit_asked_at;
    int64_t limit_asked_steps = 0;
    absl::Time recovering_since;
    std::unique_ptr<Attempt> attempt;
    std::thread thread;
    bool attempt_over = false;
    AttemptEnd end;
    std::vector<double> step_seconds;  // of the current attempt
    absl::Time median_at = absl::InfinitePast();
    bool checkpoints_removed = false;       // unneeded checkpoints, once the job is over
    bool only_recording_left = false;       // its folder has no others, as of the start
    bool only_last_stay = false;            // nothing is left to thin, since its last attempt
    bool thinned_whole = false;             // as kAll, since its last attempt
    std::shared_ptr<ExampleStream> stream;  // of a dataset of format STREAM; else null
  };

  // AttemptObserver.
  void OnPlanned(const std::string& job_id, int32_t attempt, const PlanFacts& facts) override;
  void OnRunning(const std::string& job_id, int32_t attempt) override;
  void OnStep(const std::string& job_id, int32_t attempt, const v1::StepReport& report) override;
  void OnValidation(const std::string& job_id, int32_t attempt,
                    const v1::StepReport& validation) override;
  void OnCheckpoint(const std::string& job_id, int32_t attempt,
                    const StoredCheckpoint& checkpoint) override;
  void OnCheckpointSkipped(const std::string& job_id, int32_t attempt,
                           const std::string& reason) override;
  bool MakeRoom(const std::string& job_id) override { return ThinForRoom(job_id); }
  void OnMessage(const std::string& job_id, const v1::JobMessage& message) override {
    AddMessage(job_id, message);
  }

  // Returns InvalidArgument for a pipeline that the cluster has too few workers for.
  absl::Status CheckStages(const v1::SearchOptions& search) const;
  // Cancel and Resume: applies an event that a client requests.
  template <typename Request, typename Reply>
  absl::Status ApplyRequest(const char* method, JobEventKind kind, const Request& request,
                            Reply* reply);

  absl::Status LoadValidations(Job* job) const;
  // Of a job whose dataset is a STREAM.
  void OpenStream(Job* job) const;
  // FailedPrecondition if the examples of a STREAM would not last.
  absl::Status CheckStream(const v1::TrainingSpec& spec) const;
  absl::StatusOr<std::shared_ptr<ExampleStream>> StreamOf(const std::string& job_id) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A job that is about to start.
  struct Starting {
    std::shared_ptr<Job> job;
    std::vector<Member> members;
    std::string left_out;  // workers that are cut off from others
    JobLifecycle before;
    int most_before = 0;
  };
  enum class Choice {
    kStarts,
    kGoOn,   // it cannot start now, but jobs behind it may
    kWaits,  // and so do all jobs behind it
    kParks,  // as kGoOn, until there are as many workers as the job's parked_for
  };

  void Loop();
  absl::StatusOr<Job*> Find(const std::string& job_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Applies the event in memory and marks the job dirty.
  absl::Status Apply(Job* job, const JobLifecycleEvent& event)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Marks changes for the loop, which makes them durable about ten times a second.
  void MarkDirty(Job* job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes the jobs' changes durable. Releases mutex_ while they are written, so the jobs may have
  // changed again afterwards.
  absl::Status Flush(Job* job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<absl::Status> FlushAll(const std::vector<Job*>& given)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FlushDirty() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Brings the lists of jobs up to date after a job's state or attempt has changed.
  void Settle(Job* job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Count(Job* job, const std::string& state, bool paused) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(Job* job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The job has got so many workers, or gives them back.
  void HoldDevices(Job* job, int devices) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReleaseDevices(Job* job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Charge(absl::Time now, Job* job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetTimes(absl::Time now, Job* job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Charges the owners of running jobs, and ends jobs whose time limit is reached.
  void CheckTimes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status LoadUsage() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Once a minute, or `now`.
  void SaveUsage(bool now) ABSL_LOCKS_EXCLUDED(mutex_);

  // Gives versions to the jobs of older stores, in the order in which they were submitted.
  absl::Status NameOlderJobs(std::vector<JobRecord>* records) ABSL_LOCKS_EXCLUDED(mutex_);
  static void SetExperiment(v1::Job* job);
  // Versions of deleted jobs are not given again.
  absl::Status LoadLastVersion(const v1::Job& job) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status ReserveVersion(const v1::Job& job) ABSL_LOCKS_EXCLUDED(mutex_, deletions_mutex_);
  void PutName(const v1::Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  bool IsRecordedHere(const Job& job) const;
  // Removes checkpoints of a job's recording and brings its record up to date. Its log says `why`,
  // if it was thinned. Returns how many went. Blocks. To the limits, those stay that are yet to be
  // copied to the spool. Thinning out ends when so many bytes are free; 0: as far as it goes.
  size_t ThinRecording(const std::string& job_id, Thinning how, const std::string& why,
                       int64_t needed_bytes = 0) ABSL_LOCKS_EXCLUDED(mutex_, thinning_);
  // Has recordings make room on a full disk: the job's own, or the oldest ones. Returns false if
  // none can.
  bool ThinForRoom(const std::string& job_id) ABSL_LOCKS_EXCLUDED(mutex_);
  // Keeps the recordings of all jobs within their limit.
  void ThinOldRecordings() ABSL_LOCKS_EXCLUDED(mutex_);
  // A job that is over and has checkpoints that may go, the one that ended first; and how.
  std::optional<std::pair<std::string, Thinning>> OldestRecording() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetRecorded(Job* job, int64_t checkpoints, int64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes what is left of a recorded job besides its recording. REQUIRES: it has no attempt, or
  // one that has not begun.
  void RemoveUnrecordedOf(const std::string& job_id, int32_t attempts, int64_t checkpoint_step);
  // By the files that the store has, at the start.
  void CountRecordings(const std::vector<ObjectReader::Object>& objects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Status LoadNextNumber() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits until the attempt of a job that is over has ended.
  absl::StatusOr<Job*> FindForDeletion(const std::string& job_id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RemoveFilesOf(const Job& job);
  // Makes durable that the number of a deleted job was given.
  absl::Status ReserveNumbers(int64_t deleted, int64_t next_number)
      ABSL_LOCKS_EXCLUDED(deletions_mutex_);
  void EndAttempts(std::vector<std::thread>* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WatchLeases() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Has the jobs of workers that are about to leave write a checkpoint, at which they go on without
  // them.
  void WatchDrains() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Workers of the job's attempt that are about to leave.
  std::vector<Member> LeavingOf(const Job& job) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Schedule() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Tells a job's log that no worker is idle, once that has been so for a while.
  void SayItWaits(Job* job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Assigns some of the idle workers to the job, if it can start, and adds it to `starts`.
  Choice Choose(Job* job, std::vector<Member>* idle, std::vector<Starting>* starts)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Begins the attempts, once their numbers are durable.
  void Begin(std::vector<Starting> starts) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginAttempt(Starting start, JobRecord full) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the workers of running attempts.
  std::vector<Member> TrainingWorkers() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns how many workers more a running job could have; 0 if that is not worth a new attempt.
  int CanGrowBy(const Job& job) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Why a running job's attempt is to end for one on other workers, now that a checkpoint is
  // durable, for its log; nothing: it goes on.
  std::optional<std::string> WhyItMoves(const Job& job) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What its log says when it goes on without `leaving`.
  std::string GoesOnWithout(const Job& job, const std::vector<Member>& leaving) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends the attempt for one on other workers.
  void Move(Job* job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RollBack(Job* job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `reason`: why the last checkpoint was skipped; empty: there is room. Tells the job's log once.
  void SetCheckpointsPaused(Job* job, const std::string& reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ReserveUnknownJobs() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string JobFolder(const std::string& job_id) const;
  void Wake();

  const JobRunnerOptions options_;
  JobDeletionListener* deletion_listener_ = nullptr;  // null: nobody listens
  const AttemptTools tools_;
  JobStore* const store_;
  const Clock* const clock_;
  Metrics* const metrics_;
  Idempotency idempotency_;

  absl::Mutex thinning_;  // locked before mutex_: by one thread at a time
  mutable absl::Mutex mutex_;
  absl::CondVar published_;  // signalled when some job's version changes, or a write has ended
  std::map<std::string, std::shared_ptr<Job>> jobs_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, std::shared_ptr<Job>> by_number_ ABSL_GUARDED_BY(mutex_);
  // Numbers of jobs: with an attempt; with changes that are not durable; over, with checkpoints
  // that are to be removed.
  std::set<int64_t> active_ ABSL_GUARDED_BY(mutex_), dirty_ ABSL_GUARDED_BY(mutex_),
      over_ ABSL_GUARDED_BY(mutex_);
  JobIndex index_ ABSL_GUARDED_BY(mutex_);
  RunNames names_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> named_now_;                     // jobs that Start has given a version
  int64_t recorded_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of all jobs
  JobQueue queue_ ABSL_GUARDED_BY(mutex_);
  UnfinishedJobs unfinished_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int> states_ ABSL_GUARDED_BY(mutex_);  // jobs by state
  int paused_ ABSL_GUARDED_BY(mutex_) = 0;                     // jobs whose checkpoints are
  FairShare fair_share_ ABSL_GUARDED_BY(mutex_);
  bool usage_changed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time save_usage_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  int held_ ABSL_GUARDED_BY(mutex_) = 0;  // devices of all jobs
  CutOffHosts cut_off_ ABSL_GUARDED_BY(mutex_);
  RecentTensors recent_tensors_ ABSL_GUARDED_BY(mutex_){kRecentTensorBytes};
  int64_t next_number_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::Mutex deletions_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  int64_t durable_next_number_ ABSL_GUARDED_BY(deletions_mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  // Separate from mutex_, as the registry wakes the loop from within calls made under mutex_.
  absl::Mutex wake_mutex_ ABSL_ACQUIRED_AFTER(mutex_);
  absl::CondVar wake_;
  bool woken_ ABSL_GUARDED_BY(wake_mutex_) = false;
  bool quit_ ABSL_GUARDED_BY(wake_mutex_) = false;
  std::thread loop_;
};

}  // namespace espalier
