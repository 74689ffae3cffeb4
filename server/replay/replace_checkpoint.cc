// What a replay does when a checkpoint that it needs is damaged or gone.
#include <spdlog/spdlog.h>

#include <string>

#include "absl/strings/escaping.h"
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

absl::Status RunningReplay::ReplaceCheckpoint(size_t number, const absl::Status& failure) {
  Segment* segment = nullptr;
  std::string replay_id;
  {
    absl::MutexLock lock(&mutex_);
    replay_id = info_.id();
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
  const AttemptTools& attempts = *tools_.attempts;
  const absl::Status restored =
      is_copy ? damage
              : RestoreCheckpoint({attempts.checkpoints, attempts.spool, attempts.recordings},
                                  job_id, directory, absl::StrCat(replay_id, "/", number),
                                  [this] { return interrupted(); });
  if (absl::IsCancelled(restored)) return restored;
  std::string instead = "there are no answers from it";
  const bool copy_failed = !is_copy && !restored.ok() && !absl::IsNotFound(restored);
  if (restored.ok()) {
    instead = absl::StrCat("its copy in ", attempts.spool->url(), " has replaced it");
  } else {
    unreadable_.insert({job_id, checkpoint});
  }
  if (absl::Status s = FindLeft(number); !s.ok()) return s;
  if (!restored.ok() && segment->kind == v1::ReplaySegment::TRAINING) {
    instead =
        absl::StrCat("its steps are replayed from step ", segment->cut.checkpoint, " instead");
  }
  const std::string note = absl::StrCat(
      segment->run->name(), ": the checkpoint of step ", checkpoint,
      absl::IsDataLoss(damage) ? " is damaged: " : " cannot be read: ", damage.message(), "; ",
      copy_failed ? absl::StrCat(restored.message(), "; ") : "", instead);
  spdlog::warn("{}", absl::CHexEscape(note));
  absl::MutexLock lock(&mutex_);
  Note(note);
  return absl::OkStatus();
}

}  // namespace espalier
