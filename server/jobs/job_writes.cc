// How JobRunner makes what changes of its jobs durable, and keeps its lists of them.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "proto/states.h"
#include "server/jobs/job_runner.h"

namespace espalier {
namespace {

// Puts what could not be written before what has come since.
void Prepend(JobWrite older, JobWrite* newer) {
  if (const std::optional<int64_t> from = newer->drop_reports_from; from.has_value()) {
    for (auto* reports : {&older.reports, &older.validations}) {
      reports->erase(std::remove_if(reports->begin(), reports->end(),
                                    [&](const v1::StepReport& r) { return r.step() >= *from; }),
                     reports->end());
    }
    older.drop_reports_from = std::min(older.drop_reports_from.value_or(*from), *from);
  }
  const auto append = [](auto* to, auto* from) {
    to->insert(to->end(), std::make_move_iterator(from->begin()),
               std::make_move_iterator(from->end()));
  };
  append(&older.reports, &newer->reports);
  append(&older.validations, &newer->validations);
  append(&older.messages, &newer->messages);
  if (newer->idempotency_record.has_value()) {
    older.idempotency_record = std::move(newer->idempotency_record);
  }
  older.with_plan = older.with_plan || newer->with_plan;
  older.job.reset();
  *newer = std::move(older);
}

// Gives the time to what has none yet: it may have failed to be written before.
void SetLogTimes(int64_t unix_ms, JobWrite* write) {
  const auto set = [&](auto* entries) {
    for (auto& entry : *entries) {
      if (entry.unix_ms() == 0) entry.set_unix_ms(unix_ms);
    }
  };
  set(&write->reports);
  set(&write->validations);
  set(&write->messages);
}

}  // namespace

void JobRunner::MarkDirty(Job* job) {
  job->dirty = true;
  dirty_.insert(job->number);
}

absl::Status JobRunner::Flush(Job* job) { return FlushAll({job})[0]; }

std::vector<absl::Status> JobRunner::FlushAll(const std::vector<Job*>& given) {
  std::vector<std::shared_ptr<Job>> jobs;
  for (Job* job : given) jobs.push_back(job->shared_from_this());
  // One write of a job at a time, so that the store gets them in order.
  while (absl::c_any_of(jobs, [](const auto& job) { return job->writing; })) {
    published_.Wait(&mutex_);
  }
  std::vector<absl::Status> statuses(jobs.size());
  std::vector<std::pair<size_t, JobWrite>> writes;
  const absl::Time now = clock_->Now();
  const int64_t now_unix_ms = clock_->NowUnixMillis();
  for (size_t i = 0; i < jobs.size(); ++i) {
    Job& job = *jobs[i];
    if (job.deleted) statuses[i] = JobNotFound(job.record.job.id());
    if (job.deleted || !job.dirty) continue;
    SetTimes(now, &job);
    SetLogTimes(now_unix_ms, &job.pending);
    job.dirty = false;
    dirty_.erase(job.number);
    job.writing = true;
    JobWrite& write = writes.emplace_back(i, std::exchange(job.pending, JobWrite())).second;
    write.job = job.record;
    if (write.with_plan) *write.job->job.mutable_plan() = job.plan;
  }
  if (writes.empty()) return statuses;
  std::vector<JobStore::NamedWrite> named;
  for (const auto& [i, write] : writes) named.emplace_back(write.job->job.id(), &write);
  mutex_.Unlock();
  const std::vector<absl::Status> written = store_->WriteAll(named);
  mutex_.Lock();
  for (size_t w = 0; w < writes.size(); ++w) {
    auto& [i, write] = writes[w];
    Job& job = *jobs[i];
    job.writing = false;
    statuses[i] = written[w];
    if (written[w].ok()) {
      ++job.version;
      index_.Put(SummaryOf(job.number, write.job->job));
      if (write.with_plan && !job.pending.with_plan) job.plan.Clear();
      continue;
    }
    metrics_->StoreError();
    spdlog::error("job id={} not written: {}", job.record.job.id(), written[w].ToString());
    Prepend(std::move(write), &job.pending);
    job.retry_at = absl::Now() + kStoreRetry;
    MarkDirty(&job);
  }
  published_.SignalAll();
  return statuses;
}

void JobRunner::FlushDirty() {
  std::vector<Job*> jobs;
  for (const int64_t number : dirty_) {
    Job* const job = by_number_.at(number).get();
    if (absl::Now() >= job->retry_at) jobs.push_back(job);
  }
  if (!jobs.empty()) FlushAll(jobs);
}

void JobRunner::Settle(Job* job) {
  const v1::Job& record = job->record.job;
  const v1::JobState state = job->life.state;
  const bool idle = job->attempt == nullptr && !job->life.attempt_running;
  if (idle && (state == v1::QUEUED || state == v1::RECOVERING)) {
    queue_.Put({.id = record.id(),
                .owner = record.owner(),
                .number = job->number,
                .priority = record.priority(),
                .priority_among_owners = record.priority_among_owners(),
                .interrupted = state == v1::RECOVERING});
  } else {
    queue_.Remove(record.id());
  }
  if (IsOver(state) && job->attempt == nullptr) {
    unfinished_.Remove(job->number);
    if (!job->checkpoints_removed) over_.insert(job->number);
  } else {
    unfinished_.Add(job->number, record);
  }
  Count(job, StateName(state), !IsOver(state) && !record.checkpoints_paused().empty());
}

void JobRunner::Count(Job* job, const std::string& state, bool paused) {
  if (job->counted_as != state) {
    if (!job->counted_as.empty()) --states_[job->counted_as];
    if (!state.empty()) ++states_[state];
    job->counted_as = state;
    metrics_->SetJobs(states_);
  }
  if (job->counted_paused != paused) {
    paused_ += paused ? 1 : -1;
    job->counted_paused = paused;
    metrics_->SetCheckpointsPaused(paused_);
  }
}

void JobRunner::Forget(Job* job) {
  Count(job, "", false);
  queue_.Remove(job->record.job.id());
  unfinished_.Remove(job->number);
  index_.Remove(job->number);
  names_.Remove(job->record.job.id());
  recorded_bytes_ -= job->record.job.recorded_bytes();
  over_.erase(job->number);
  dirty_.erase(job->number);
  by_number_.erase(job->number);
  jobs_.erase(job->record.job.id());  // the last reference, perhaps
}

std::map<std::string, int> JobRunner::CountByState(const Caller& caller) const {
  absl::MutexLock lock(&mutex_);
  std::map<std::string, int> counts;
  for (const auto& [state, count] :
       index_.Count([&](const std::string& owner) { return caller.MayUse(owner); })) {
    counts[StateName(state)] = count;
  }
  return counts;
}

}  // namespace espalier
