#include "server/replay/segment_runner.h"

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "server/jobs/prepare_validation.h"
#include "server/jobs/rank_report_merger.h"
#include "server/jobs/stored_values.h"
#include "server/replay/fetch_checkpoint.h"
#include "server/replay/step_answers.h"
#include "storage/data_folder_names.h"

namespace espalier {

SegmentRunner::SegmentRunner(const AttemptTools& tools, SegmentTask task, SegmentObserver* observer)
    : tools_(tools), task_(std::move(task)), observer_(observer) {}

void SegmentRunner::Cancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  if (ranks_ != nullptr) ranks_->Cancel();
}

std::vector<v1::LoadProgramRequest> SegmentRunner::Requests(const std::string& values,
                                                            const std::string& checkpoint) const {
  const PreparedJob& prepared = task_.program->prepared();
  const LoweredPlan& lowered = task_.program->lowered();
  std::vector<v1::LoadProgramRequest> requests(lowered.training.size());
  for (size_t r = 0; r < requests.size(); ++r) {
    v1::LoadProgramRequest& request = requests[r];
    *request.mutable_program() = lowered.training[r];
    *request.mutable_dataset() = task_.spec->dataset();
    request.set_batch_size(task_.spec->batch_size());
    request.set_checkpoint_dir(checkpoint);
    if (prepared.init_folder.has_value()) {
      request.set_init_folder(tools_.data_folder->NameOf(prepared.init_folder->path()));
    }
    request.set_values_folder(values);
    const std::vector<v1::RankProbe>& probes = task_.program->probes().by_rank[r];
    request.mutable_probes()->Assign(probes.begin(), probes.end());
  }
  return requests;
}

absl::Status SegmentRunner::RunSteps(int64_t first, int64_t end, bool logs,
                                     std::optional<int64_t> hash_step) {
  v1::RunRequest request;
  request.set_first_step(first);
  request.set_last_step(end);
  request.set_goes_on(true);  // there is no folder for a checkpoint anyhow
  if (logs) {
    request.mutable_probe_steps()->set_first(task_.cut.logged.first);
    request.mutable_probe_steps()->set_end(task_.cut.logged.end);
    request.mutable_probe_steps()->set_every(task_.cut.logged.every);
  }
  if (hash_step.has_value()) request.set_hash_step(*hash_step);
  RankReportMerger merger(static_cast<int>(ranks_->size()), task_.job_id);
  merger.SetFinishes(task_.program->prepared().finishes);
  StepAnswers answers(&task_.program->probes());
  return ranks_->Run(request, [&](size_t rank, const v1::RunEvent& event) -> absl::Status {
    if (event.has_step()) {
      absl::StatusOr<std::optional<v1::StepReport>> merged =
          merger.AddStep(static_cast<int>(rank), event.step());
      if (!merged.ok()) return merged.status();
      return merged->has_value() ? observer_->OnStep(**merged) : absl::OkStatus();
    }
    if (event.has_probes()) {
      absl::StatusOr<std::vector<v1::HistoryRow>> rows = answers.Add(rank, event.probes());
      if (!rows.ok()) return rows.status();
      if (rows->empty()) return absl::OkStatus();
      rows = task_.program->questions().Complete(*std::move(rows), event.probes().step());
      if (!rows.ok()) return rows.status();
      return observer_->OnRows(*std::move(rows));
    }
    if (event.has_hashes()) observer_->OnHashes(rank, event.hashes());
    return absl::OkStatus();
  });
}

absl::Status SegmentRunner::Run(std::optional<int64_t> first_hashed) {
  const PreparedJob& prepared = task_.program->prepared();
  // Before workers are leased, as it may take a while.
  std::optional<FetchedCheckpoint> checkpoint;
  if (!task_.checkpoint.empty()) {
    absl::StatusOr<FetchedCheckpoint> fetched = FetchCheckpoint(
        tools_, task_.job_id, task_.checkpoint, task_.replay_id, task_.number, [this] {
          absl::MutexLock lock(&mutex_);
          return cancelled_;
        });
    if (!fetched.ok()) return fetched.status();
    checkpoint.emplace(*std::move(fetched));
  }
  absl::StatusOr<std::unique_ptr<ReplayRanks>> ranks =
      ReplayRanks::Create(tools_, task_.name, task_.members, task_.attempt);
  if (!ranks.ok()) return absl::AbortedError(ranks.status().message());
  {
    absl::MutexLock lock(&mutex_);
    if (cancelled_) return absl::CancelledError("the replay was cancelled");
    ranks_ = *std::move(ranks);
  }
  const absl::Cleanup give_back = [this] {
    absl::MutexLock lock(&mutex_);
    ranks_.reset();
  };
  const bool initial = task_.checkpoint.empty() && !prepared.init_folder.has_value();
  const std::string folder = absl::StrCat(kCheckpointsFolder, "/", task_.name);
  absl::Cleanup remove = [&] { tools_.data_folder->Delete(folder).IgnoreError(); };
  absl::StatusOr<StoredValues> stored = StoredValues::Write(
      *tools_.data_folder, absl::StrCat(folder, "/values"), task_.job_id, prepared.graph,
      initial ? prepared.initial_values : std::vector<InitialValue>());
  if (!stored.ok()) return stored.status();
  absl::StatusOr<std::vector<v1::LoadProgramReply>> loaded =
      ranks_->Load(Requests(stored->folder(), checkpoint.has_value() ? checkpoint->folder() : ""));
  std::move(remove).Invoke();
  checkpoint.reset();
  if (!loaded.ok()) return loaded.status();
  if (absl::Status s = observer_->OnLoaded(*loaded); !s.ok()) return s;
  const int64_t end = task_.cut.logged.end;
  if (!first_hashed.has_value()) {
    return RunSteps(task_.cut.checkpoint, end, /*logs=*/true, std::nullopt);
  }
  absl::Status s;
  if (*first_hashed > task_.cut.checkpoint) {
    s = RunSteps(task_.cut.checkpoint, *first_hashed, /*logs=*/false, std::nullopt);
  }
  for (int64_t step = *first_hashed; s.ok() && step < end; ++step) {
    s = RunSteps(step, step + 1, /*logs=*/false, step);
  }
  return s;
}

}  // namespace espalier
