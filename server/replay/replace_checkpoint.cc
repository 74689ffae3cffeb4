// What a replay does when a checkpoint that it needs is damaged or gone.
#include <string>

#include "absl/strings/str_cat.h"
#include "server/jobs/checkpoint_folders.h"
#include "server/recordings/fetched_checkpoint.h"
#include "server/replay/fetch_checkpoint.h"
#include "server/replay/running_replay.h"

namespace espalier {

absl::Status RunningReplay::VerifyRecorded(const ReplayedRun& run, const std::string& directory,
                                           int64_t checkpoint, size_t number, bool* is_copy) {
  const auto stopped = [this] { return interrupted(); };
  std::string replay_id;
  {
    absl::MutexLock lock(&mutex_);
    replay_id = info_.id();
  }
  // A copy is verified while it is fetched.
  const absl::StatusOr<FetchedCheckpoint> fetched = FetchCheckpoint(
      *tools_.attempts, run.job_id, directory, replay_id, static_cast<int>(number), stopped);
  *is_copy = !fetched.ok() || fetched->is_copy();
  if (*is_copy) return fetched.status();
  return VerifyCheckpoint(*tools_.attempts->checkpoints, fetched->folder(), checkpoint, stopped);
}

std::string RunningReplay::SpoolWithCopyOf(const std::string& job_id,
                                           const std::string& directory) const {
  const Spool* const spool = tools_.attempts->spool;
  if (spool == nullptr) return "";
  const absl::StatusOr<v1::RecordedCheckpoint> copy =
      tools_.attempts->recordings->CopyOf(job_id, directory);
  return copy.ok() && copy->spool() == spool->url() ? copy->spool() : "";
}

absl::Status RunningReplay::ReplaceCheckpoint(size_t number, const absl::Status& failure) {
  Segment* segment = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    segment = segments_[number].get();
  }
  const int64_t checkpoint = FirstCheckpoint(*segment);
  const std::string directory = segment->run->FolderOf(checkpoint);
  if (directory.empty() || !MeansDamage(failure)) return failure;
  bool is_copy = false;
  const absl::Status damage =
      VerifyRecorded(*segment->run, directory, checkpoint, number, &is_copy);
  if (!MeansDamage(damage)) return failure;
  const std::string& job_id = segment->run->job_id;
  const std::string spool = is_copy ? "" : SpoolWithCopyOf(job_id, directory);
  std::string instead = "there are no answers from it";
  if (!spool.empty()) {
    // Without its manifest the next try finds the copy.
    const absl::StatusOr<StoredCheckpoint> moved =
        espalier::ReplaceCheckpoint(*tools_.attempts->checkpoints, job_id, {directory, checkpoint});
    if (!moved.ok()) return moved.status();
    instead = absl::StrCat("its copy in ", spool, " is read instead");
  } else {
    damaged_.insert({job_id, checkpoint});
  }
  if (absl::Status s = FindLeft(number); !s.ok()) return s;
  if (spool.empty() && segment->kind == v1::ReplaySegment::TRAINING) {
    instead =
        absl::StrCat("its steps are replayed from step ", segment->cut.checkpoint, " instead");
  }
  absl::MutexLock lock(&mutex_);
  Note(absl::StrCat(segment->run->name(), ": the checkpoint of step ", checkpoint,
                    " is damaged: ", damage.message(), "; ", instead));
  return absl::OkStatus();
}

}  // namespace espalier
