// An attempt's checkpoints: a damaged one, one for which the disk has no room, and the export of
// the last.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/jobs/attempt.h"
#include "server/jobs/export_model.h"
#include "server/jobs/job_message.h"
#include "server/recordings/fetched_checkpoint.h"

namespace espalier {
namespace {

// How often a full disk is tried again, once only the end of the job waits for it.
constexpr absl::Duration kRoomCheck = absl::Seconds(2);

}  // namespace

std::optional<AttemptEnd> Attempt::WriteCheckpoint(int64_t steps_done) {
  v1::RunRequest only_checkpoint;
  only_checkpoint.set_first_step(steps_done);
  only_checkpoint.set_last_step(steps_done);
  only_checkpoint.set_checkpoint_at_begin(true);
  for (bool tried = false;; tried = true) {
    bool no_room = false;
    {
      absl::MutexLock report_lock(&report_mutex_);
      if (checkpoint_.steps_done >= steps_done) return std::nullopt;
      no_room = skipped_steps_ == steps_done;
    }
    if (tried && !no_room) {
      return AttemptEnd::Failed(absl::InternalError(
          absl::StrCat("the workers did not write the checkpoint of step ", steps_done)));
    }
    if (no_room && WaitForRoom()) return EndOfRanks();
    std::optional<AttemptEnd> end = RunSteps(only_checkpoint);
    if (end.has_value()) return end;
  }
}

std::optional<AttemptEnd> Attempt::CheckBestIsThere() {
  const int64_t best = validations_.kept_steps();
  if (best == 0) return std::nullopt;
  const absl::StatusOr<StoredCheckpoint> found =
      FindCheckpoint(*tools_.checkpoints, task_.record.job.id(), best);
  if (!found.ok()) return AttemptEnd::Failed(found.status());
  if (!found->within_job.empty()) return std::nullopt;
  return BestDamaged(best, absl::DataLossError("it is not there, or not whole"));
}

AttemptEnd Attempt::BestDamaged(int64_t best_steps, const absl::Status& damage) {
  // A later one would not bring the best one back.
  absl::StatusOr<StoredCheckpoint> before =
      FindCheckpointBefore(*tools_.checkpoints, task_.record.job.id(), best_steps);
  if (!before.ok()) return AttemptEnd::Failed(before.status());
  AttemptEnd end;
  end.kind = AttemptEnd::kCheckpointDamaged;
  end.fallback = *std::move(before);
  end.reason = absl::StrCat("the checkpoint of the best validation, of step ", best_steps,
                            ", is damaged: ", damage.message());
  return end;
}

bool Attempt::WaitForRoom() {
  absl::MutexLock lock(&mutex_);
  const absl::Time deadline = absl::Now() + kRoomCheck;
  while (!stop_ && absl::Now() < deadline) changed_.WaitWithDeadline(&mutex_, deadline);
  return stop_;
}

std::string Attempt::CheckpointFolder(const std::string& within_job) const {
  return JoinPath(task_.record.job.id(), within_job);
}

AttemptEnd Attempt::CheckpointDamaged(const StoredCheckpoint& damaged, const absl::Status& damage) {
  AttemptEnd end;
  end.kind = AttemptEnd::kCheckpointDamaged;
  end.reason = absl::StrCat("the checkpoint of step ", damaged.steps_done,
                            " is damaged: ", damage.message());
  const absl::Status restored = RestoreCheckpoint(
      {tools_.checkpoints, tools_.spool, tools_.recordings}, task_.record.job.id(),
      damaged.within_job, absl::StrCat("attempt-", task_.attempt), [this] { return stopping(); });
  if (absl::IsCancelled(restored)) return AttemptEnd::Stopped();
  if (restored.ok()) {
    end.fallback = damaged;
    absl::StrAppend(&end.reason, "; its copy in ", tools_.spool->url(), " has replaced it");
    return end;
  }
  if (!absl::IsNotFound(restored)) absl::StrAppend(&end.reason, "; ", restored.message());
  spdlog::info("job id={}: no copy of the checkpoint of step {}: {}", task_.record.job.id(),
               damaged.steps_done, absl::CHexEscape(restored.message()));
  absl::StatusOr<StoredCheckpoint> other =
      ReplaceCheckpoint(*tools_.checkpoints, task_.record.job.id(), damaged);
  if (!other.ok()) return AttemptEnd::Failed(other.status());
  end.fallback = *std::move(other);
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
  const absl::Status damage =
      VerifyCheckpoint(*tools_.checkpoints, CheckpointFolder(resumed.within_job),
                       resumed.steps_done, [this] { return stopping(); });
  if (absl::IsCancelled(damage)) return AttemptEnd::Stopped();
  return MeansDamage(damage) ? CheckpointDamaged(resumed, damage) : end;
}

void Attempt::SkipCheckpoint(const RankReportMerger::Checkpoint& checkpoint,
                             const std::string& reason) {
  // Makes room, too: some ranks may have written their shards.
  const absl::Status removed = tools_.checkpoints->Delete(checkpoint.directory);
  if (!removed.ok()) spdlog::warn("job id={}: {}", task_.record.job.id(), removed.ToString());
  skipped_steps_ = checkpoint.steps_done;
  observer_->OnCheckpointSkipped(
      task_.record.job.id(), task_.attempt,
      absl::StrCat("checkpoint of step ", checkpoint.steps_done, ": ", reason));
}

std::map<std::string, double> Attempt::EvaluationOfExported() const {
  std::map<std::string, double> values;
  for (const v1::StepReport& validation : validations_.reports()) {
    if (validation.step() + 1 != ExportedSteps()) continue;
    for (const auto& [name, value] : validation.values()) {
      values[std::string(absl::StripPrefix(name, kValidationPrefix))] = value;
    }
    return values;
  }
  return {evaluation_.values().begin(), evaluation_.values().end()};
}

AttemptEnd Attempt::Finish(const Graph& model) {
  AttemptEnd end;
  StoredCheckpoint checkpoint;
  const int64_t exported = ExportedSteps();
  {
    absl::MutexLock report_lock(&report_mutex_);
    if (checkpoint_.steps_done == exported) {
      checkpoint = checkpoint_;
    } else {
      absl::StatusOr<StoredCheckpoint> found =
          FindCheckpoint(*tools_.checkpoints, task_.record.job.id(), exported);
      if (!found.ok()) return AttemptEnd::Failed(found.status());
      checkpoint = *std::move(found);
    }
    end.evaluation = EvaluationOfExported();
    absl::MutexLock lock(&mutex_);
    for (const Rank& rank : ranks_) end.measured_peak_bytes.push_back(rank.peak_bytes);
  }
  const bool is_last = exported == steps_done_;
  if (checkpoint.within_job.empty()) {
    return BestDamaged(exported, absl::DataLossError("it is not there, or not whole"));
  }
  const v1::Job& job = task_.record.job;
  end.output_model = job.spec().output_model().empty() ? job.id() : job.spec().output_model();
  std::string no_onnx;
  const auto stopped = [this] { return stopping(); };
  const std::string folder = CheckpointFolder(checkpoint.within_job);
  const ModelExport what = {.files = tools_.files,
                            .checkpoints = tools_.checkpoints,
                            .artifacts = tools_.artifacts,
                            .registry = tools_.registry,
                            .model = &model,
                            .checkpoint = folder,
                            .job_id = job.id(),
                            .name = end.output_model,
                            .owner = job.owner(),
                            .init_artifact = job.spec().init_artifact(),
                            .tokenizer_artifact = job.spec().tokenizer_artifact(),
                            .stop = stopped};
  absl::StatusOr<std::string> registered = ExportModel(what, &no_onnx);
  for (bool said = false; absl::IsResourceExhausted(registered.status());) {
    if (!observer_->MakeRoom(job.id())) {
      if (!said) {
        observer_->OnMessage(job.id(),
                             WarningMessage(absl::StrCat("the model is trained and waits for "
                                                         "room: ",
                                                         registered.status().message())));
      }
      said = true;
      if (WaitForRoom()) return AttemptEnd::Stopped();
    } else if (stopping()) {
      return AttemptEnd::Stopped();
    }
    registered = ExportModel(what, &no_onnx);
  }
  const absl::Status status = registered.status();
  if (absl::IsCancelled(status) && stopped()) return AttemptEnd::Stopped();
  if (MeansDamage(status)) {
    const absl::Status damage =
        VerifyCheckpoint(*tools_.checkpoints, folder, checkpoint.steps_done, stopped);
    if (absl::IsCancelled(damage)) return AttemptEnd::Stopped();
    if (MeansDamage(damage)) {
      AttemptEnd damaged = CheckpointDamaged(checkpoint, damage);
      return is_last ? damaged : BestDamaged(exported, damage);
    }
  }
  if (!no_onnx.empty()) {
    observer_->OnMessage(job.id(),
                         DetailMessage(absl::StrCat("the model has no ONNX file: ", no_onnx)));
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
        job.id(), InfoMessage(absl::StrCat("there was a model '", end.output_model,
                                           "' already: this one is '", *registered, "', and '",
                                           end.output_model, "' now means it")));
    end.output_model = *registered;
  }
  end.kind = AttemptEnd::kFinished;
  return end;
}

}  // namespace espalier
