// An attempt's checkpoints: a damaged one, one for which the disk has no room, and the export of
// the last.
#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "server/jobs/attempt.h"
#include "server/jobs/export_model.h"

namespace espalier {
namespace {

// How often a full disk is tried again, once only the end of the job waits for it.
constexpr absl::Duration kRoomCheck = absl::Seconds(2);

}  // namespace

std::optional<AttemptEnd> Attempt::WriteLastCheckpoint(int64_t total_steps) {
  while (true) {
    {
      absl::MutexLock report_lock(&report_mutex_);
      if (checkpoint_.steps_done >= total_steps || !checkpoint_skipped_) return std::nullopt;
    }
    if (WaitForRoom()) return EndOfRanks();
    std::optional<AttemptEnd> end =
        RunSteps(total_steps, total_steps, /*evaluate=*/false, /*checkpoint_first=*/true);
    if (end.has_value()) return end;
  }
}

bool Attempt::WaitForRoom() {
  absl::MutexLock lock(&mutex_);
  const absl::Time deadline = absl::Now() + kRoomCheck;
  while (!stop_ && absl::Now() < deadline) changed_.WaitWithDeadline(&mutex_, deadline);
  return stop_;
}

std::string Attempt::CheckpointFolder(const std::string& within_job) const {
  return JoinPath(task_.checkpoint_root, within_job);
}

AttemptEnd Attempt::CheckpointDamaged(const StoredCheckpoint& damaged, const absl::Status& damage) {
  AttemptEnd end;
  end.kind = AttemptEnd::kCheckpointDamaged;
  end.fallback = ReplaceCheckpoint(*tools_.files, task_.checkpoint_root, damaged);
  end.reason = absl::StrCat("the checkpoint of step ", damaged.steps_done,
                            " is damaged: ", damage.message());
  return end;
}

AttemptEnd Attempt::BlameCheckpoint(AttemptEnd end) {
  if (end.kind != AttemptEnd::kFailed || task_.checkpoint.empty()) return end;
  {
    absl::MutexLock lock(&mutex_);
    const bool possible = std::any_of(ranks_.begin(), ranks_.end(),
                                      [](const Rank& rank) { return MeansDamage(rank.status); });
    if (!possible) return end;
  }
  const StoredCheckpoint resumed{task_.checkpoint, task_.record.job.checkpoint_step()};
  const absl::Status damage = VerifyCheckpoint(*tools_.files, CheckpointFolder(resumed.within_job),
                                               resumed.steps_done, [this] { return stopping(); });
  if (absl::IsCancelled(damage)) return AttemptEnd::Stopped();
  return MeansDamage(damage) ? CheckpointDamaged(resumed, damage) : end;
}

void Attempt::SkipCheckpoint(const RankReportMerger::Checkpoint& checkpoint,
                             const std::string& reason) {
  // Makes room, too: some ranks may have written their shards.
  std::error_code ignored;
  std::filesystem::remove_all(CheckpointFolder(CheckpointWithinJob(checkpoint.directory)), ignored);
  checkpoint_skipped_ = true;
  observer_->OnCheckpointSkipped(
      task_.record.job.id(), task_.attempt,
      absl::StrCat("checkpoint of step ", checkpoint.steps_done, ": ", reason));
}

AttemptEnd Attempt::Finish(const Graph& model, int64_t total_steps) {
  AttemptEnd end;
  StoredCheckpoint checkpoint;
  {
    absl::MutexLock report_lock(&report_mutex_);
    if (checkpoint_.steps_done < total_steps) {
      return AttemptEnd::Failed(absl::InternalError(absl::StrCat(
          "the workers finished all ", total_steps,
          " steps, but the last complete checkpoint is of step ", checkpoint_.steps_done)));
    }
    checkpoint = checkpoint_;
    end.evaluation = evaluation_;
    absl::MutexLock lock(&mutex_);
    for (const Rank& rank : ranks_) end.measured_peak_bytes.push_back(rank.peak_bytes);
  }
  const v1::Job& job = task_.record.job;
  end.output_model = job.spec().output_model().empty() ? job.id() : job.spec().output_model();
  std::string no_onnx;
  const auto stopped = [this] { return stopping(); };
  const std::string folder = CheckpointFolder(checkpoint.within_job);
  const ModelExport what = {.files = tools_.files,
                            .artifacts = tools_.artifacts,
                            .registry = tools_.registry,
                            .model = &model,
                            .checkpoint_directory = folder,
                            .job_id = job.id(),
                            .name = end.output_model,
                            .owner = job.owner(),
                            .init_artifact = job.spec().init_artifact(),
                            .tokenizer_artifact = job.spec().tokenizer_artifact(),
                            .stop = stopped};
  absl::StatusOr<std::string> registered = ExportModel(what, &no_onnx);
  for (bool said = false; absl::IsResourceExhausted(registered.status()); said = true) {
    if (!said) {
      observer_->OnMessage(job.id(), absl::StrCat("the model is trained and waits for room: ",
                                                  registered.status().message()));
    }
    if (WaitForRoom()) return AttemptEnd::Stopped();
    registered = ExportModel(what, &no_onnx);
  }
  const absl::Status status = registered.status();
  if (absl::IsCancelled(status) && stopped()) return AttemptEnd::Stopped();
  if (MeansDamage(status)) {
    const absl::Status damage =
        VerifyCheckpoint(*tools_.files, folder, checkpoint.steps_done, stopped);
    if (absl::IsCancelled(damage)) return AttemptEnd::Stopped();
    if (MeansDamage(damage)) return CheckpointDamaged(checkpoint, damage);
  }
  if (!no_onnx.empty()) {
    observer_->OnMessage(job.id(), absl::StrCat("the model has no ONNX file: ", no_onnx));
  }
  if (!status.ok()) {
    end.kind = AttemptEnd::kFailed;
    end.reason =
        absl::StrCat("the model is trained, but could not be registered as '", end.output_model,
                     "': ", status.message(), "; resume the job once that is fixed");
    return end;
  }
  if (*registered != end.output_model) {
    observer_->OnMessage(
        job.id(), absl::StrCat("there was a model '", end.output_model, "' already: this one is '",
                               *registered, "', and '", end.output_model, "' now means it"));
    end.output_model = *registered;
  }
  end.kind = AttemptEnd::kFinished;
  return end;
}

}  // namespace espalier
