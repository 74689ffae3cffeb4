// What the jobs of JobRunner use: their times and limits, and the usage of their owners.
#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/states.h"
#include "server/jobs/job_runner.h"
#include "server/jobs/job_time_limit.h"

namespace espalier {
namespace {

constexpr char kFairShare[] = "jobs/fair-share";
constexpr absl::Duration kSaveUsageEvery = absl::Minutes(1);

}  // namespace

void JobRunner::HoldDevices(Job* job, int devices) {
  const absl::Time now = clock_->Now();
  Charge(now, job);
  job->devices = devices;
  job->charged_until = now;
  fair_share_.Hold(job->record.job.owner(), devices);
  held_ += devices;
}

void JobRunner::ReleaseDevices(Job* job) {
  Charge(clock_->Now(), job);
  fair_share_.Hold(job->record.job.owner(), -job->devices);
  held_ -= job->devices;
  job->devices = 0;
}

void JobRunner::Charge(absl::Time now, Job* job) {
  if (job->devices == 0 || now <= job->charged_until) return;
  const double seconds = absl::ToDoubleSeconds(now - job->charged_until);
  job->charged_until = now;
  job->ran_seconds += seconds;
  job->device_seconds += seconds * job->devices;
  fair_share_.Charge(job->record.job.owner(), seconds * job->devices, now);
  usage_changed_ = true;
}

void JobRunner::SetTimes(absl::Time now, Job* job) {
  Charge(now, job);
  job->record.job.set_running_seconds(job->ran_seconds);
  job->record.job.set_device_seconds(job->device_seconds);
}

void JobRunner::CheckTimes() {
  const absl::Time now = clock_->Now();
  for (const int64_t number : active_) {
    Job& job = *by_number_.at(number);
    Charge(now, &job);
    const v1::Job& record = job.record.job;
    if (job.attempt_over || !IsActive(job.life.state)) continue;
    const LimitedJob limited{.limit = absl::Seconds(record.time_limit_seconds()),
                             .ran = absl::Seconds(job.ran_seconds),
                             .asked = job.limit_asked,
                             .since_asked = now - job.limit_asked_at,
                             .steps_when_asked = job.limit_asked_steps,
                             .steps_done = record.steps_done(),
                             .total_steps = record.total_steps(),
                             .checkpoint_step = job.life.checkpoint_step};
    switch (DecideTimeLimit(limited, options_.time_limit_grace)) {
      case LimitAction::kGoOn:
        break;
      case LimitAction::kAskForCheckpoint:
        job.limit_asked = true;
        job.limit_asked_at = now;
        job.limit_asked_steps = record.steps_done();
        job.attempt->RequestCheckpoint();
        break;
      case LimitAction::kEnd:
        Apply(&job, {.kind = JobEventKind::kTimeLimit,
                     .attempt = job.life.attempts,
                     .reason = TimeLimitError(record.id(), limited)})
            .IgnoreError();  // the state was checked
        break;
    }
  }
}

absl::Status JobRunner::LoadUsage() {
  const absl::StatusOr<std::string> text = store_->GetBlob(kFairShare);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  if (!text.ok()) return text.status();
  if (absl::Status status = fair_share_.Load(*text); !status.ok()) {
    spdlog::warn("jobs: {}: all owners begin anew: {}", kFairShare,
                 absl::CHexEscape(status.message()));
  }
  return absl::OkStatus();
}

void JobRunner::SaveUsage(bool now) {
  std::string text;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time time = clock_->Now();
    if (!usage_changed_ || (!now && time < save_usage_at_)) return;
    usage_changed_ = false;
    save_usage_at_ = time + kSaveUsageEvery;
    text = fair_share_.Save(time);
  }
  if (absl::Status status = store_->PutBlob(kFairShare, text); !status.ok()) {
    metrics_->StoreError();
    spdlog::error("jobs: the owners' usage is not written: {}", status.ToString());
    absl::MutexLock lock(&mutex_);
    usage_changed_ = true;
  }
}

}  // namespace espalier
