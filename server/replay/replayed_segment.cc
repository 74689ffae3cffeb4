#include "server/replay/replayed_segment.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/version.h"
#include "server/recordings/recorded_losses.h"

namespace espalier {
namespace {

constexpr absl::Duration kReportEvery = absl::Milliseconds(250);

SegmentTask TaskOf(const ReplayedSegmentTask& task, const Clock& clock) {
  SegmentTask segment;
  segment.name = ReplayAttemptName(task.run->job_id, task.replay_id, task.number);
  // Grows with each try, also after a restart.
  segment.attempt = static_cast<uint64_t>(clock.NowUnixMillis());
  segment.job_id = task.run->job_id;
  segment.spec = &task.run->spec;
  segment.program = task.program.get();
  segment.cut = task.cut;
  segment.checkpoint = task.run->FolderOf(task.cut.checkpoint);
  segment.replay_id = task.replay_id;
  segment.number = task.number;
  segment.members = task.members;
  return segment;
}

bool IsHalf(const v1::TrainingSpec& spec) {
  return spec.precision() == v1::F16 || spec.precision() == v1::BF16;
}

}  // namespace

ReplayedSegment::ReplayedSegment(const ReplayTools& tools, ReplayedSegmentTask task,
                                 OnProgress on_progress)
    : tools_(tools),
      task_(std::move(task)),
      on_progress_(std::move(on_progress)),
      runner_(*tools.attempts, TaskOf(task_, *tools.clock), this),
      answers_(tools, task_.run->Row(), task_.replay_id, task_.number) {}

absl::Status ReplayedSegment::Run() {
  absl::Status status = runner_.Run();
  if (difference_.has_value()) {
    status = absl::AbortedError(absl::StrCat("the loss of step ", difference_->step(), " differs"));
  }
  // What comes before a difference, or before a worker was lost, is about the recorded run.
  const absl::Status stored = Store();
  Report();
  return status.ok() ? stored : status;
}

absl::Status ReplayedSegment::OnLoaded(const std::vector<v1::LoadProgramReply>& ranks) {
  absl::StatusOr<std::vector<RecordedLoss>> losses =
      ReadLosses(*tools_.jobs, task_.run->job_id, task_.cut.checkpoint);
  if (!losses.ok()) return losses.status();
  v1::RecordedAttempt replayed;
  *replayed.mutable_plan() = task_.program->plan();
  replayed.set_program_version(kEspalierVersion);
  for (size_t r = 0; r < ranks.size(); ++r) {
    v1::RecordedAttempt::Rank& rank = *replayed.add_ranks();
    rank.set_device_model(task_.members[r].device.model());
    rank.set_instruction_set(ranks[r].instruction_set());
    rank.set_threads(ranks[r].threads());
    rank.set_program_version(ranks[r].program_version());
  }
  const v1::Recording& recording = task_.run->recording;
  check_.emplace(
      *std::move(losses),
      std::vector<v1::RecordedAttempt>(recording.attempts().begin(), recording.attempts().end()),
      task_.cut.checkpoint, std::move(replayed), LossTolerance(IsHalf(task_.run->spec)),
      task_.counted_from);
  return absl::OkStatus();
}

absl::Status ReplayedSegment::OnStep(const v1::StepReport& report) {
  progress_.steps_done = report.step() + 1 - task_.cut.checkpoint;
  const auto loss = report.values().find(kLossValue);
  if (loss != report.values().end()) {
    difference_ = check_->Check(report.step(), loss->second);
    if (difference_.has_value()) {
      return absl::AbortedError("the loss differs from the recorded one");
    }
  }
  checked_ = report.step();
  if (answers_.IsDue()) {
    if (absl::Status s = Store(); !s.ok()) return s;
  }
  if (absl::Now() >= report_at_) Report();
  return absl::OkStatus();
}

absl::Status ReplayedSegment::OnRows(std::vector<v1::HistoryRow> rows) {
  answers_.Add(std::move(rows));
  return absl::OkStatus();
}

absl::Status ReplayedSegment::Store() {
  // In this order: a restart goes on after the last answers, and what was compared up to them is
  // counted only here.
  progress_.durable = true;
  Report();
  progress_.durable = false;
  return answers_.Store(checked_);
}

void ReplayedSegment::Report() {
  report_at_ = absl::Now() + kReportEvery;
  progress_.stored_rows = answers_.stored_rows();
  if (check_.has_value()) progress_.comparison = check_->comparison();
  on_progress_(progress_);
}

}  // namespace espalier
