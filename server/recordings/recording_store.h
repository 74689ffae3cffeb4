// Recordings of jobs: what they were made with (in the job store), and their checkpoints (in the
// checkpoint store, and perhaps in another store, to which they are spooled).
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "espalier/v1/recording.pb.h"
#include "server/recordings/spool_index.h"
#include "server/store/job_store.h"
#include "storage/checkpoint_store.h"

namespace espalier {

// Whether a job's checkpoints are kept, and what they were made with.
bool IsRecorded(const v1::TrainingSpec& spec);

// Of a job's data, as in Recording.
struct RecordedDigests {
  std::string graph, dataset, validation;
};

// Returns the attempts whose steps are the job's, in ascending order of first steps: steps that a
// later attempt trained again are that one's. Given in the order of attempts.
std::vector<v1::RecordedAttempt> AttemptsOfSteps(std::vector<v1::RecordedAttempt> attempts);

// Whether a checkpoint belongs to the recording: not if the job went back to before it.
bool BelongsToRecording(int32_t attempt, int64_t steps_done,
                        const std::vector<v1::RecordedAttempt>& attempts, int64_t checkpoint_step);

// Where the checkpoint store has the answers to replays of a job (server/replay/answer_store.h).
std::string AnswersFolder(const std::string& job_id);

// Thread-safe.
class RecordingStore {
 public:
  // All pointers must outlive the store. `spool`: the one that is used; empty: none is.
  RecordingStore(CheckpointStore* checkpoints, JobStore* jobs, std::string spool = "")
      : checkpoints_(checkpoints), jobs_(jobs), spool_(std::move(spool)), copies_(jobs) {}

  // Durable when it returns.
  absl::Status PutAttempt(const std::string& job_id, const v1::RecordedAttempt& attempt);
  absl::Status PutDigests(const std::string& job_id, const RecordedDigests& digests);
  // NotFound if they are not known yet.
  absl::StatusOr<RecordedDigests> Digests(const std::string& job_id) const;

  // The whole recording, with the checkpoints that are there now, in the checkpoint store or in a
  // spool: as the job store says, so that a spool is not asked. NotFound for an unknown job. Of a
  // job without a recording only what its record says.
  absl::StatusOr<v1::Recording> Load(const std::string& job_id) const;
  // The same without its checkpoints: reads the job store only.
  absl::StatusOr<v1::Recording> LoadFacts(const std::string& job_id) const;

  // Where a checkpoint is spooled, in the spool that is used if it is in several. NotFound: it is
  // in none.
  absl::StatusOr<v1::RecordedCheckpoint> CopyOf(const std::string& job_id,
                                                const std::string& directory) const;
  // A read of the copy in the spool that is used has found whether it is whole. One that is not
  // does not count, until another read finds otherwise, or the next start.
  void SetCopyUsable(const std::string& job_id, const std::string& directory, bool usable)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The directories of the copies that are not.
  std::set<std::string> UnusableCopies(const std::string& job_id) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Which checkpoints have copies.
  SpoolIndex& copies() { return copies_; }
  const SpoolIndex& copies() const { return copies_; }

  // Removes what the job store has of a deleted job of so many attempts, and answers to its
  // replays; marks its copies in spools as deleted.
  absl::Status RemoveFacts(const std::string& job_id, int32_t attempts) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  CheckpointStore* const checkpoints_;
  JobStore* const jobs_;
  const std::string spool_;
  SpoolIndex copies_;
  mutable absl::Mutex mutex_;
  // By job.
  std::map<std::string, std::set<std::string>> unusable_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
