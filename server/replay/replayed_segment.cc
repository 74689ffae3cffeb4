#include "server/replay/replayed_segment.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/version.h"
#include "server/recordings/recorded_losses.h"

namespace espalier {
namespace {

// Rows wait so long, or until there are so many, to be stored together.
constexpr absl::Duration kStoreEvery = absl::Seconds(1);
constexpr size_t kStoreBytes = 4 << 20;
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
  const std::string folder = task.run->FolderOf(task.cut.checkpoint);
  if (!folder.empty()) segment.checkpoint = absl::StrCat(task.run->job_id, "/", folder);
  segment.members = task.members;
  return segment;
}

bool IsHalf(const v1::TrainingSpec& spec) {
  return spec.precision() == v1::F16 || spec.precision() == v1::BF16;
}

}  // namespace

ReplayedSegment::ReplayedSegment(const ReplayTools& tools, ReplayedSegmentTask task,
                                 std::function<void(const SegmentProgress&)> on_progress)
    : tools_(tools),
      task_(std::move(task)),
      on_progress_(std::move(on_progress)),
      runner_(*tools.attempts, TaskOf(task_, *tools.clock), this) {}

absl::Status ReplayedSegment::Run() {
  absl::Status status = runner_.Run();
  if (difference_.has_value()) {
    status = absl::AbortedError(absl::StrCat("the loss of step ", difference_->step(), " differs"));
  }
  // What comes before a difference, or before a worker was lost, is about the recorded run.
  const absl::Status stored = StoreRows();
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
      task_.cut.checkpoint, std::move(replayed), LossTolerance(IsHalf(task_.run->spec)));
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
  if (absl::Now() >= store_at_) {
    if (absl::Status s = StoreRows(); !s.ok()) return s;
  }
  if (absl::Now() >= report_at_) Report();
  return absl::OkStatus();
}

absl::Status ReplayedSegment::OnRows(std::vector<v1::HistoryRow> rows) {
  for (v1::HistoryRow& row : rows) {
    row.set_experiment(task_.run->recording.experiment());
    row.set_version(task_.run->recording.version());
    row.set_job_id(task_.run->job_id);
    row.set_source(v1::HistoryRow::REPLAY);
    row.set_replay_id(task_.replay_id);
    row.set_unix_ms(tools_.clock->NowUnixMillis());
    rows_bytes_ += row.ByteSizeLong();
    rows_.push_back(std::move(row));
  }
  if (store_at_ == absl::InfiniteFuture()) store_at_ = absl::Now() + kStoreEvery;
  if (rows_bytes_ >= kStoreBytes) store_at_ = absl::InfinitePast();
  return absl::OkStatus();
}

absl::Status ReplayedSegment::StoreRows() {
  store_at_ = absl::InfiniteFuture();
  rows_bytes_ = 0;
  const auto unchecked = std::find_if(
      rows_.begin(), rows_.end(), [&](const v1::HistoryRow& row) { return row.step() > checked_; });
  if (unchecked == rows_.begin()) return absl::OkStatus();
  const std::vector<v1::HistoryRow> rows(std::make_move_iterator(rows_.begin()),
                                         std::make_move_iterator(unchecked));
  rows_.erase(rows_.begin(), unchecked);
  absl::Status status =
      tools_.answers->Append(task_.run->job_id, task_.replay_id, task_.number, rows);
  if (!status.ok()) {
    return absl::Status(status.code(),
                        absl::StrCat("answers cannot be stored: ", status.message()));
  }
  progress_.stored_rows += static_cast<int64_t>(rows.size());
  return absl::OkStatus();
}

void ReplayedSegment::Report() {
  report_at_ = absl::Now() + kReportEvery;
  if (check_.has_value()) progress_.comparison = check_->comparison();
  on_progress_(progress_);
}

}  // namespace espalier
