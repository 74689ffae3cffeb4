// Copies the checkpoints of recorded jobs to a second store, the spool, while the jobs train
// (FLOR's spooling). A copy has the name of the checkpoint, stays when the checkpoint is removed to
// make room, and goes when the job is deleted.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/backoff.h"
#include "server/recordings/spool_index.h"
#include "server/recordings/stored_checkpoints.h"
#include "storage/checkpoint_store.h"
#include "storage/copy_checkpoint.h"

namespace espalier {

// What a spool does, for the jobs' logs and metrics. Called from its thread.
class SpoolObserver {
 public:
  virtual ~SpoolObserver() = default;
  // Once for each time that a job's checkpoints cannot be copied, which is tried again.
  virtual void OnSpoolFailed(const std::string& job_id, const std::string& message) = 0;
  // After that: all of its checkpoints are copied.
  virtual void OnSpoolRecovered(const std::string& job_id, const std::string& message) = 0;
  // Some checkpoints of the job were copied, and none is left.
  virtual void OnJobSpooled(const std::string& job_id) = 0;
  // A checkpoint of which so many bytes were written.
  virtual void OnSpooled(int64_t bytes) = 0;
  // A call of the spool failed.
  virtual void OnSpoolError() = 0;
  // Checkpoints that are not copied yet.
  virtual void OnSpoolPending(int64_t checkpoints) = 0;
};

struct SpoolOptions {
  std::string url;                   // names it: "s3://bucket/prefix", "/mnt/recordings"
  CheckpointStore* store = nullptr;  // of the coordinator
  CheckpointStore* spool = nullptr;
  JobStore* jobs = nullptr;
  SpoolIndex* index = nullptr;
  SpoolObserver* observer = nullptr;
  // Returns an error while the spool must not be used, such as a disk that is not mounted. May be
  // null.
  std::function<absl::Status()> check;
  // Pauses after failures.
  absl::Duration first_retry = absl::Seconds(1), longest_retry = absl::Minutes(1);
};

// Thread-safe. Its thread has a low priority.
class Spool {
 public:
  // All pointers must outlive it.
  explicit Spool(SpoolOptions options);
  ~Spool();

  // Begins to copy what has no copy yet.
  void Start();
  // Waits for the thread, which ends soon unless a call of a store hangs. Idempotent.
  void Stop();

  const std::string& url() const { return options_.url; }

  // The job may have new checkpoints. Does not block, nor does the next one.
  void Changed(const std::string& job_id);
  // Jobs were deleted: see SpoolIndex::MarkDeleted.
  void RemoveDeleted();

  // Copies a checkpoint back, to the folder `to` of the coordinator's store. Blocks. NotFound if
  // the spool does not have it; other errors as of CopyCheckpoint.
  absl::Status Fetch(const std::string& folder, const std::string& to,
                     const std::function<bool()>& stopped);

 private:
  void Run();
  // Waits for the end of a pause, which only Stop cuts short, and then for something to do. Returns
  // false on Stop.
  bool Await(absl::Time pause_until) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Does what there is to do. After an error that waits to be done again.
  absl::Status Pass();
  // Once: all jobs of the store may lack copies.
  absl::Status FindJobs();
  absl::Status RemoveCopies();
  // Checkpoints of a recorded job that have no copy.
  absl::StatusOr<std::vector<StoredCheckpoints::Checkpoint>> Missing(const std::string& job_id);
  absl::Status Recorded(const std::string& job_id, bool* recorded);
  // Returns `usable`, unless OK, if there is something to copy.
  absl::Status CopyJob(const std::string& job_id, absl::Status usable);
  absl::Status CopyOne(const std::string& job_id, const StoredCheckpoints::Checkpoint& checkpoint);
  void SetPending(const std::string& job_id, int64_t checkpoints);
  bool stopped() const {
    absl::MutexLock lock(&mutex_);
    return stop_;
  }

  const SpoolOptions options_;

  // Of the thread.
  Backoff backoff_;
  std::map<std::string, bool> recorded_;    // jobs whose specs were read
  std::map<std::string, int64_t> pending_;  // checkpoints by job
  std::set<std::string> failed_;            // jobs whose logs say so
  std::set<std::string> damaged_;           // folders
  CopiedFiles copied_;
  bool all_found_ = false;
  std::thread thread_;

  mutable absl::Mutex mutex_;
  absl::CondVar changed_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<std::string> waiting_ ABSL_GUARDED_BY(mutex_);  // jobs
  bool deletions_ ABSL_GUARDED_BY(mutex_) = true;
};

}  // namespace espalier
