#include "server/replay/state_segment.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/replay/fetch_checkpoint.h"
#include "server/replay/state_tensors.h"

namespace espalier {
namespace {

constexpr absl::Duration kStateReportEvery = absl::Milliseconds(250);

}  // namespace

StateSegment::StateSegment(const ReplayTools& tools, CheckpointSegmentTask task,
                           std::shared_ptr<const ReplayProgram> program, OnProgress on_progress)
    : tools_(tools),
      task_(std::move(task)),
      program_(std::move(program)),
      on_progress_(std::move(on_progress)),
      answers_(tools, task_.run->Row(), task_.replay_id, task_.number) {}

absl::StatusOr<std::vector<v1::HistoryRow>> StateSegment::Read(int64_t checkpoint) {
  const std::string folder = task_.run->FolderOf(checkpoint);
  std::optional<FetchedCheckpoint> fetched;
  std::unique_ptr<StateTensors> tensors;
  if (folder.empty()) {
    tensors = std::make_unique<InitialTensors>(program_->lowered().training,
                                               program_->prepared().initial_values);
  } else {
    absl::StatusOr<FetchedCheckpoint> found =
        FetchCheckpoint(*tools_.attempts, task_.run->job_id, folder, task_.replay_id, task_.number,
                        [this] { return cancelled_.load(); });
    if (!found.ok()) return found.status();
    fetched.emplace(*std::move(found));
    absl::StatusOr<std::unique_ptr<CheckpointTensors>> opened =
        CheckpointTensors::Open(*tools_.attempts->checkpoints, fetched->folder(), checkpoint);
    if (!opened.ok()) return opened.status();
    tensors = *std::move(opened);
  }
  if (!reader_.has_value()) {
    if (absl::Status s = MakeReader(*tensors); !s.ok()) return s;
  }
  absl::StatusOr<std::vector<v1::HistoryRow>> rows = reader_->Read(*tensors, checkpoint);
  if (!rows.ok()) return rows;
  return fragments_.Complete(*std::move(rows), checkpoint);
}

absl::Status StateSegment::MakeReader(const StateTensors& tensors) {
  if (program_ != nullptr) {
    fragments_ = program_->questions().fragments;
    reader_ = CheckpointAnswers::Make(program_->probes(), program_->lowered().training);
    return absl::OkStatus();
  }
  absl::StatusOr<GraphFragments> fragments = GraphFragments::Make(
      *tools_.attempts->registry, task_.questions.fragments,
      [&](const ProbeExpression& source) -> absl::StatusOr<TensorType> {
        const std::string name = TensorOf(source.targets[0]);
        const auto found = tensors.tensors().find(name);
        if (found != tensors.tensors().end()) {
          return TensorType{found->second.dtype, found->second.global};
        }
        return absl::NotFoundError(absl::StrCat("the checkpoint has no '", name, "'"));
      });
  if (!fragments.ok()) return fragments.status();
  fragments_ = *std::move(fragments);
  std::vector<ProbeExpression> probes = task_.questions.probes;
  probes.insert(probes.end(), fragments_.sources().begin(), fragments_.sources().end());
  absl::StatusOr<CheckpointAnswers> made = CheckpointAnswers::Make(tensors, probes);
  if (!made.ok()) return made.status();
  if (!made->lacking().empty()) {
    const auto& [probe, why] = made->lacking().front();
    return absl::InvalidArgumentError(absl::StrCat("log: ", probe, ": ", why.message()));
  }
  reader_ = *std::move(made);
  return absl::OkStatus();
}

absl::Status StateSegment::Run() {
  SegmentProgress progress;
  absl::Time report_at = absl::InfinitePast();
  absl::Status status;
  int64_t read = -1;
  for (const int64_t checkpoint : task_.checkpoints) {
    if (cancelled_) status = absl::CancelledError("the replay was cancelled");
    if (!status.ok()) break;
    absl::StatusOr<std::vector<v1::HistoryRow>> rows = Read(checkpoint);
    status = rows.status();
    if (!status.ok()) break;
    answers_.Add(*std::move(rows));
    read = checkpoint;
    ++progress.steps_done;
    if (answers_.IsDue()) status = answers_.Store(read);
    if (absl::Now() < report_at) continue;
    report_at = absl::Now() + kStateReportEvery;
    progress.stored_rows = answers_.stored_rows();
    on_progress_(progress);
  }
  const absl::Status stored = answers_.Store(read);
  progress.stored_rows = answers_.stored_rows();
  on_progress_(progress);
  return status.ok() ? stored : status;
}

}  // namespace espalier
