#include "server/replay/evaluation_segment.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/replay/replay_ranks.h"

namespace espalier {

EvaluationSegment::EvaluationSegment(const ReplayTools& tools, CheckpointSegmentTask task,
                                     std::shared_ptr<const v1::TrainingSpec> spec,
                                     std::shared_ptr<const ReplayProgram> program,
                                     std::vector<Member> members, OnProgress on_progress)
    : tools_(tools),
      task_(std::move(task)),
      spec_(std::move(spec)),
      program_(std::move(program)),
      members_(std::move(members)),
      on_progress_(std::move(on_progress)),
      answers_(tools, task_.run->Row(), task_.replay_id, task_.number) {}

void EvaluationSegment::Cancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  if (evaluations_ != nullptr) evaluations_->Cancel();
}

absl::Status EvaluationSegment::OnRows(const EvaluatedCheckpoint& checkpoint,
                                       std::vector<v1::HistoryRow> rows) {
  answers_.Add(std::move(rows));
  evaluated_ = checkpoint.steps_done;
  ++progress_.steps_done;
  if (answers_.IsDue()) {
    if (absl::Status s = answers_.Store(evaluated_); !s.ok()) return s;
  }
  progress_.stored_rows = answers_.stored_rows();
  on_progress_(progress_);
  return absl::OkStatus();
}

absl::Status EvaluationSegment::Run() {
  EvaluationTask task;
  // Another name for each try: workers refuse those that they have stopped.
  task.name = absl::StrCat(ReplayAttemptName(task_.run->job_id, task_.replay_id, task_.number), "-",
                           tools_.clock->NowUnixMillis());
  task.replay_id = task_.replay_id;
  task.number = task_.number;
  task.job_id = task_.run->job_id;
  task.spec = spec_.get();
  task.program = program_.get();
  task.prefix = task_.run->evaluation_prefix;
  task.questions = task_.questions;
  task.members = members_;
  for (const int64_t steps : task_.checkpoints) {
    EvaluatedCheckpoint& checkpoint = task.checkpoints.emplace_back();
    checkpoint.steps_done = steps;
    checkpoint.directory = task_.run->FolderOf(steps);
  }
  absl::StatusOr<std::unique_ptr<CheckpointEvaluations>> made =
      CheckpointEvaluations::Make(*tools_.attempts, std::move(task), this);
  if (!made.ok()) return made.status();
  {
    absl::MutexLock lock(&mutex_);
    if (cancelled_) return absl::CancelledError("the replay was cancelled");
    evaluations_ = *std::move(made);
  }
  const absl::Status ran = evaluations_->Run();
  const absl::Status stored = answers_.Store(evaluated_);
  progress_.stored_rows = answers_.stored_rows();
  on_progress_(progress_);
  // Without these answers the first checkpoint that is left is not the one that could not be read.
  return stored.ok() ? ran : stored;
}

}  // namespace espalier
