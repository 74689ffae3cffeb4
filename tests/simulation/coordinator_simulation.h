// A coordinator with thousands of workers and jobs in one process: the real JobRunner,
// WorkerRegistry and SqliteStore, with a clock that only the simulation advances. Workers only have
// leases, and attempts only take time. What is random comes from a seed; threads are real.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/net/caller.h"
#include "base/testing/fake_clock.h"
#include "server/artifacts/artifact_store.h"
#include "server/jobs/job_runner.h"
#include "server/membership/worker_registry.h"
#include "server/metrics/metrics.h"
#include "server/store/sqlite_store.h"
#include "storage/dataset_roots.h"
#include "storage/folder_checkpoint_store.h"

namespace espalier {

class CoordinatorSimulation {
 public:
  struct Options {
    std::string folder;  // is emptied
    uint64_t seed = 1;
    absl::Duration lease = absl::Seconds(10);
  };
  explicit CoordinatorSimulation(const Options& options);
  ~CoordinatorSimulation();

  // The coordinator stops, and starts again with what is durable. Its workers keep their leases.
  void Restart();
  JobRunner& jobs() { return *runner_; }
  WorkerRegistry& workers() { return *workers_; }
  FakeClock& clock() { return clock_; }

  // So many more workers join.
  void Join(int workers);
  int live() const { return static_cast<int>(leases_.size()); }
  // The worker sends no heartbeats any more, and its attempt hears nothing of it.
  void Kill(size_t worker);
  void KillAny() { Kill(random_() % leases_.size()); }
  // The clock goes on by at most a quarter of the lease; the workers that live send heartbeats.
  void Advance(absl::Duration by);

  // A small job; what matters of it to the queue may be set. Valid specifications.
  v1::TrainingSpec Spec() const { return spec_; }
  // Submits a job, as a client of this owner does.
  std::string Submit(const v1::TrainingSpec& spec, const Caller& caller);
  // Puts jobs into the store while no coordinator runs; the ids are job-1, job-2, ...
  void Restore(const std::vector<v1::Job>& jobs);

  struct Run {
    std::string job;
    int32_t attempt = 0;
    std::vector<std::string> workers;
  };
  // The attempts that run.
  std::vector<Run> Running() const;
  // Lets an attempt finish all its steps. Returns false if it does not run any more.
  bool Finish(const Run& run);
  // Waits in real time until there are so many attempts; false after a minute.
  bool AwaitRunning(size_t attempts) const;
  // Jobs in the order in which their attempts have begun.
  std::vector<std::string> started() const;
  // What must never happen and has: a worker with two attempts, a job with two, an attempt's number
  // used twice, an attempt of a job that is over.
  std::vector<std::string> violations() const;

 private:
  friend class SimulatedAttempt;
  struct Attempted {
    std::vector<std::string> workers;
    bool finish = false, stop = false;
    std::string lost;
  };

  void Open();
  void Begin(const Run& run) ABSL_LOCKS_EXCLUDED(mutex_);
  AttemptEnd Await(const Run& run) ABSL_LOCKS_EXCLUDED(mutex_);
  void Interrupt(const Run& run, const std::string& lost) ABSL_LOCKS_EXCLUDED(mutex_);
  static std::pair<std::string, int32_t> KeyOf(const Run& run) { return {run.job, run.attempt}; }

  const Options options_;
  std::mt19937_64 random_;
  FakeClock clock_;
  std::unique_ptr<FileSystem> files_;
  std::unique_ptr<FolderCheckpointStore> checkpoints_, data_folder_;
  OpRegistry operators_;
  Metrics metrics_;
  std::unique_ptr<DatasetRoots> roots_;
  std::unique_ptr<SqliteStore> store_;
  std::unique_ptr<ArtifactStore> artifacts_;
  std::unique_ptr<WorkerRegistry> workers_;
  std::vector<v1::Lease> leases_;  // of live workers
  int joined_ = 0;
  v1::TrainingSpec spec_;

  mutable absl::Mutex mutex_;
  mutable absl::CondVar changed_;
  std::map<std::pair<std::string, int32_t>, Attempted> running_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<std::string, int32_t>> begun_ ABSL_GUARDED_BY(mutex_), stopped_
      ABSL_GUARDED_BY(mutex_);
  std::set<std::string> finished_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> busy_ ABSL_GUARDED_BY(mutex_);  // worker -> job
  std::vector<std::string> started_ ABSL_GUARDED_BY(mutex_), violations_ ABSL_GUARDED_BY(mutex_);

  std::unique_ptr<JobRunner> runner_;  // uses all of the above
};

}  // namespace espalier
