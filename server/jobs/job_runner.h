// Runs all training jobs: accepts them, keeps their records, assigns workers in order of
// submission, runs their attempts, and answers queries. Everything acknowledged to a client is
// durable.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/net/caller.h"
#include "server/artifacts/artifact_store.h"
#include "server/jobs/attempt.h"
#include "server/jobs/cut_off_hosts.h"
#include "server/jobs/example_stream.h"
#include "server/jobs/job_lifecycle.h"
#include "server/jobs/pushed_examples.h"
#include "server/jobs/recent_tensors.h"
#include "server/jobs/validation_history.h"
#include "server/jobs/worker_memory.h"
#include "server/metrics/metrics.h"
#include "server/store/idempotency.h"
#include "server/store/job_store.h"

namespace espalier {

struct JobRunnerOptions {
  std::string checkpoint_root;
  JobPolicy policy;
  absl::Duration recovery_grace_period = absl::Seconds(10);  // see CoordinatorOptions
  // An attempt runs at least this long before it is given up for one on more workers.
  absl::Duration grow_after = absl::Seconds(10);
  // What is left of a job must take this long for a new attempt on more workers to be worth it.
  absl::Duration grow_if_left = absl::Seconds(20);
};

// The error for an unknown job.
absl::Status JobNotFound(const std::string& job_id);

// Thread-safe.
class JobRunner : public AttemptObserver {
 public:
  // All pointers must outlive the runner.
  JobRunner(JobRunnerOptions options, AttemptTools tools, JobStore* store, const Clock* clock,
            Metrics* metrics);
  ~JobRunner();

  // Loads the jobs of the store. Those that were active are RECOVERING.
  absl::Status Start();
  // Stops the attempts, writes pending records and joins all threads. Jobs continue after the next
  // Start.
  void Stop();

  // Called when workers joined, left or became idle.
  void WorkersChanged();

  // The job belongs to `owner`; empty: to nobody.
  absl::Status Submit(const v1::SubmitRequest& request, const std::string& owner,
                      v1::SubmitReply* reply);
  // Owner of a job; nothing for an unknown id.
  std::optional<std::string> OwnerOf(const std::string& job_id) const;
  // Owner of a job that is not over and will write this artifact; nothing if there is none.
  std::optional<std::string> OwnerOfOutput(const std::string& artifact) const;
  absl::Status DryRun(const v1::DryRunRequest& request, v1::DryRunReply* reply);
  absl::Status Get(const v1::GetJobRequest& request, v1::GetJobReply* reply);
  absl::Status List(v1::ListJobsReply* reply);
  absl::Status Cancel(const v1::CancelRequest& request, v1::CancelReply* reply);
  absl::Status Resume(const v1::ResumeRequest& request, v1::ResumeReply* reply);
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

  std::map<std::string, int> CountByState(const Caller& caller) const;  // of jobs it may see
  // Artifacts that jobs which are not over read when they are planned again.
  std::vector<ArtifactUse> ArtifactsInUse() const;

 private:
  static constexpr absl::Duration kStoreRetry = absl::Seconds(1);
  static constexpr size_t kRecentTensorBytes = 64 << 20;

  struct Job {
    int64_t number = 0;
    JobRecord record;  // without spec.graph, spec.search.imported
    JobLifecycle life;
    JobWrite pending;  // not yet durable
    ValidationHistory validations;
    bool dirty = false;
    absl::Time retry_at = absl::InfinitePast();
    int64_t version = 0;     // of the durable record; watchers wait for a change
    int workers_before = 0;  // of the last attempt; a recovering job waits for as many
    // It was queued when the coordinator was started: takes workers once others may have joined.
    bool waits_for_workers = false;
    absl::Time workers_since = absl::InfiniteFuture();  // any are idle, while it waits for more
    absl::Time running_since = absl::InfiniteFuture();
    int waits_for = 0;  // workers, as its log says; 0: it does not wait for a number
    absl::Time idle_since = absl::InfiniteFuture();  // no worker is, while it is the next to start
    bool says_it_waits = false;                      // its log does
    bool growing = false;                    // the attempt was stopped for one on more workers
    WorkerMemory enough;                     // of the last attempt that had a plan
    std::vector<WorkerMemory> insufficient;  // of later attempts that found no plan
    size_t imported_for = 0;  // workers of its imported plan; 0: none or not known yet
    absl::Time recovering_since;
    std::unique_ptr<Attempt> attempt;
    std::thread thread;
    bool attempt_over = false;
    AttemptEnd end;
    std::vector<double> step_seconds;  // of the current attempt
    absl::Time median_at = absl::InfinitePast();
    bool checkpoints_removed = false;       // unneeded checkpoints, once the job is over
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
  void OnMessage(const std::string& job_id, const v1::JobMessage& message) override;

  // Returns InvalidArgument for a pipeline that the cluster has too few workers for.
  absl::Status CheckStages(const v1::SearchOptions& search) const;
  // Cancel and Resume: applies an event that a client requests.
  template <typename Request, typename Reply>
  absl::Status ApplyRequest(const char* method, JobEventKind kind, const Request& request,
                            Reply* reply);

  absl::Status LoadValidations(Job* job) const;
  // Of a job whose dataset is a STREAM.
  void OpenStream(Job* job) const;
  absl::StatusOr<std::shared_ptr<ExampleStream>> StreamOf(const std::string& job_id) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Loop();
  absl::StatusOr<Job*> Find(const std::string& job_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Applies the event in memory and marks the job dirty.
  absl::Status Apply(Job* job, const JobLifecycleEvent& event)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Flush(Job* job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndAttempts(std::vector<std::thread>* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WatchLeases() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Schedule() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Tells a job's log that no worker is idle, once that has been so for a while.
  void SayItWaits(Job* job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns false if the job, and with it all jobs behind it, must wait.
  bool TryStart(Job* job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the workers of running attempts.
  std::vector<Member> TrainingWorkers() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns how many workers more a running job could have; 0 if that is not worth a new attempt.
  int CanGrowBy(const Job& job) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RollBack(Job* job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `reason`: why the last checkpoint was skipped; empty: there is room. Tells the job's log once.
  void SetCheckpointsPaused(Job* job, const std::string& reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReserveUnknownJobs() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CountStates() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string JobFolder(const std::string& job_id) const;
  void Wake();

  const JobRunnerOptions options_;
  const AttemptTools tools_;
  JobStore* const store_;
  const Clock* const clock_;
  Metrics* const metrics_;
  Idempotency idempotency_;

  mutable absl::Mutex mutex_;
  absl::CondVar published_;  // signalled when some job's version changes
  std::map<std::string, std::unique_ptr<Job>> jobs_ ABSL_GUARDED_BY(mutex_);
  CutOffHosts cut_off_ ABSL_GUARDED_BY(mutex_);
  RecentTensors recent_tensors_ ABSL_GUARDED_BY(mutex_){kRecentTensorBytes};
  int64_t next_number_ ABSL_GUARDED_BY(mutex_) = 1;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  // Separate from mutex_, as the registry wakes the loop from within calls made under mutex_.
  absl::Mutex wake_mutex_ ABSL_ACQUIRED_AFTER(mutex_);
  absl::CondVar wake_;
  bool woken_ ABSL_GUARDED_BY(wake_mutex_) = false;
  bool quit_ ABSL_GUARDED_BY(wake_mutex_) = false;
  std::thread loop_;
};

}  // namespace espalier
