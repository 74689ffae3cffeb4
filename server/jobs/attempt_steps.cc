// The steps of an attempt: runs of all ranks, with validations between them.
#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/jobs/attempt.h"
#include "server/jobs/job_message.h"

namespace espalier {
namespace {

v1::RunRequest StepsOf(int64_t first, int64_t last) {
  v1::RunRequest steps;
  steps.set_first_step(first);
  steps.set_last_step(last);
  return steps;
}

}  // namespace

std::optional<AttemptEnd> Attempt::Train(const PreparedJob& prepared, int64_t first) {
  int64_t total = prepared.total_steps;
  const int64_t every = prepared.validate_every;
  // Whether examples are evaluated after so many steps.
  const auto is_due = [&](int64_t steps_done) {
    if (!prepared.evaluates) return false;
    return steps_done == total || (every > 0 && steps_done > 0 && steps_done % every == 0);
  };
  steps_done_ = first;
  bool shards_may_lack = false;  // the last run may have begun some that it did not wait for
  for (bool any = false;; any = true) {
    if (task_.stream != nullptr && !validations_.stop()) {
      if (std::optional<AttemptEnd> end = WaitForExamples(&total); end.has_value()) return end;
    }
    // After a recovery the checkpoint may be newer than the last recorded validation.
    const bool evaluate_first = is_due(steps_done_) && !IsEvaluated(steps_done_);
    const bool over = steps_done_ == total || validations_.stop();
    if (over && any && !evaluate_first) break;
    int64_t last = total;
    if (every > 0) last = std::min(total, (steps_done_ / every + 1) * every);
    if (over || evaluate_first) last = steps_done_;
    v1::RunRequest steps = StepsOf(steps_done_, last);
    if (task_.stream != nullptr) NameExamples(&steps);
    last = steps.last_step();
    steps.set_evaluate_at_end(is_due(last) && !IsEvaluated(last));
    steps.set_goes_on(last < total);
    shards_may_lack = steps.goes_on();
    if (std::optional<AttemptEnd> end = RunSteps(steps); end.has_value()) return end;
    steps_done_ = last;
    if (every == 0 || !steps.evaluate_at_end()) continue;
    if (std::optional<AttemptEnd> end = RecordValidation(); end.has_value()) return end;
  }
  if (steps_done_ < prepared.total_steps) {
    observer_->OnMessage(
        task_.record.job.id(),
        InfoMessage(absl::StrCat(
            "stopped early after ", steps_done_, " of ", prepared.total_steps, " steps: ",
            validations_.stop() ? validations_.StopReason() : "its examples have ended")));
  }
  if (std::optional<AttemptEnd> end = WriteCheckpoint(ExportedSteps()); end.has_value()) return end;
  // Stopped early, where the last run left a shard to the next one, which reports it.
  return shards_may_lack ? RunSteps(StepsOf(steps_done_, steps_done_)) : std::nullopt;
}

bool Attempt::IsEvaluated(int64_t steps_done) {
  if (validations_.HasStep(steps_done - 1)) return true;
  absl::MutexLock report_lock(&report_mutex_);
  return evaluation_.step() == steps_done && evaluation_.values_size() > 0;
}

std::optional<AttemptEnd> Attempt::RecordValidation() {
  v1::StepReport validation;
  {
    absl::MutexLock report_lock(&report_mutex_);
    if (evaluation_.step() != steps_done_) {
      return AttemptEnd::Failed(absl::InternalError(absl::StrCat(
          "the workers ended the run of ", steps_done_, " steps without their validation")));
    }
    validation.set_seconds(evaluation_.seconds());
    for (const auto& [name, value] : evaluation_.values()) {
      (*validation.mutable_values())[absl::StrCat(kValidationPrefix, name)] = value;
    }
  }
  validation.set_step(steps_done_ - 1);
  validations_.Add(validation);
  observer_->OnValidation(task_.record.job.id(), task_.attempt, validation);
  // Later steps overwrite the parameters.
  if (validations_.kept_steps() == steps_done_) return WriteCheckpoint(steps_done_);
  return std::nullopt;
}

int64_t Attempt::ExportedSteps() const {
  const int64_t kept = validations_.kept_steps();
  return kept > 0 ? kept : steps_done_;
}

std::optional<AttemptEnd> Attempt::RunSteps(v1::RunRequest steps) {
  const v1::TrainingSpec& spec = task_.record.job.spec();
  steps.set_checkpoint_every_steps(spec.record().mode() == v1::RecordOptions::EVERY
                                       ? spec.record().every_steps()
                                       : spec.checkpoint_every_steps());
  steps.set_checkpoint_root(CheckpointFolder(AttemptFolder(task_.attempt)));
  {
    absl::MutexLock lock(&mutex_);
    for (Rank& rank : ranks_) rank.done = false;
  }
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    threads.emplace_back([this, r, steps] {
      v1::RunRequest request = steps;
      *request.mutable_attempt() = AttemptMessage(r);
      absl::Status status = ranks_[r].client->Run(
          request, [this, r](const v1::RunEvent& event) { OnEvent(r, event); });
      absl::MutexLock lock(&mutex_);
      // OnEvent may already have failed the rank.
      FailRank(r, ranks_[r].status.ok() ? status : ranks_[r].status);
    });
  }
  bool ended_early;
  {
    absl::MutexLock lock(&mutex_);
    auto all_done = [this] {
      mutex_.AssertHeld();
      return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.done; });
    };
    absl::Time ask_again = absl::InfinitePast();
    while (!all_done() && !stop_ && !rank_failed_) {
      if (due_at_ > 0) {
        HandleDueCheckpoint();
      } else if (!checkpoint_requested_ || steps.first_step() == steps.last_step()) {
        // Without a step to name, the request stays.
        changed_.Wait(&mutex_);
      } else if (absl::Now() < ask_again) {
        changed_.WaitWithDeadline(&mutex_, ask_again);
      } else {
        HandleCheckpointRequest(steps.first_step(), &ask_again);
      }
    }
    const absl::Time echo = absl::Now() + kRootCauseWait;
    while (!all_done() && !stop_ && absl::Now() < echo) changed_.WaitWithDeadline(&mutex_, echo);
    ended_early = stop_ || rank_failed_;
  }
  if (ended_early) StopRanks();
  for (std::thread& thread : threads) thread.join();
  if (ended_early) return EndOfRanks();
  NoteBegun(steps);
  return std::nullopt;
}

void Attempt::NoteBegun(const v1::RunRequest& run) {
  const int64_t every = run.checkpoint_every_steps();
  const int64_t last = every > 0 ? run.last_step() / every * every : 0;
  if (last > run.first_step()) begun_ = std::max(begun_, last);
  while (!named_.empty() && *named_.begin() <= run.last_step()) {
    begun_ = std::max(begun_, *named_.begin());
    named_.erase(named_.begin());
  }
}

bool Attempt::IsWriting() {
  absl::MutexLock report_lock(&report_mutex_);
  return begun_ > std::max(checkpoint_.steps_done, skipped_steps_);
}

}  // namespace espalier
