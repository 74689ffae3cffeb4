// The scheduling part of JobRunner: which job gets which workers next.
#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/jobs/checkpoint_folders.h"
#include "server/jobs/job_message.h"
#include "server/jobs/job_runner.h"
#include "server/jobs/select_workers.h"
#include "server/jobs/stored_values.h"

namespace espalier {
namespace {

// Backoff between attempts without progress.
constexpr absl::Duration kInitialBackoff = absl::Milliseconds(100);
constexpr absl::Duration kMaxBackoff = absl::Seconds(5);
constexpr absl::Duration kSaysItWaitsAfter = absl::Seconds(3);
// Jobs that are looked at before others get the lock.
constexpr int kMostTries = 64;

std::string NamesOfMissing(const std::vector<Member>& some, const std::vector<Member>& all) {
  std::vector<std::string> names;
  for (const Member& member : all) {
    const auto same = [&member](const Member& other) { return other.address == member.address; };
    if (absl::c_none_of(some, same)) {
      names.push_back(absl::StrCat("worker ", member.lease.worker_id(), " (", member.name, ")"));
    }
  }
  return absl::StrJoin(names, ", ");
}

}  // namespace

void JobRunner::Schedule() {
  if (queue_.empty()) return;
  std::vector<Member> idle = tools_.workers->Idle();
  queue_.SetWorkers(static_cast<int>(idle.size()) + held_);
  const auto usage = [this, now = clock_->Now()](const std::string& owner) {
    mutex_.AssertHeld();
    return fair_share_.Usage(owner, now);
  };
  std::set<std::string> skipped;
  std::vector<Starting> starts;
  for (int tried = 0;; ++tried) {
    const WaitingJob* const next = queue_.First(usage, skipped);
    if (next == nullptr) break;
    const std::string id = next->id;
    Job* const job = jobs_.at(id).get();
    // The store's error may concern this job only, so the others do not wait.
    if (absl::Now() < job->retry_at) {
      skipped.insert(id);
      continue;
    }
    if (idle.empty()) {
      SayItWaits(job);
      break;
    }
    if (tried == kMostTries) {
      Wake();  // goes on once others had the lock
      break;
    }
    const Choice choice = Choose(job, &idle, &starts);
    if (choice == Choice::kWaits) break;
    if (choice == Choice::kGoOn) skipped.insert(id);
    if (choice == Choice::kParks) queue_.Park(id, job->parked_for);
  }
  Begin(std::move(starts));
}

std::vector<Member> JobRunner::TrainingWorkers() const {
  std::vector<Member> members;
  for (const int64_t number : active_) {
    const std::vector<Member>& own = by_number_.at(number)->attempt->members();
    members.insert(members.end(), own.begin(), own.end());
  }
  return members;
}

int JobRunner::CanGrowBy(const Job& job) const {
  if (job.life.state != v1::RUNNING) return 0;
  const v1::Job& record = job.record.job;
  const v1::SearchOptions& search = record.spec().search();
  // As many as it had; more than that only if it says so.
  int wanted = search.max_devices() > 0 ? search.max_devices() : record.most_workers();
  if (search.strategy() == v1::SearchOptions::SINGLE_DEVICE) wanted = 1;
  if (job.imported_for > 0) wanted = std::min(wanted, static_cast<int>(job.imported_for));
  const int missing = wanted - static_cast<int>(job.attempt->members().size());
  if (missing <= 0 || clock_->Now() - job.running_since < options_.grow_after) return 0;
  const double left = static_cast<double>(record.total_steps() - job.life.checkpoint_step) *
                      record.median_step_seconds();
  if (absl::Seconds(left) < options_.grow_if_left) return 0;
  // Jobs that wait go first.
  if (!queue_.empty()) return 0;
  const std::vector<Member>& own = job.attempt->members();
  std::vector<Member> all = tools_.workers->Idle();
  all.insert(all.begin(), own.begin(), own.end());
  const size_t usable =
      cut_off_.LeaveOut(std::move(all), own.size(), own.size(), clock_->Now()).size();
  return std::min(missing, static_cast<int>(usable - own.size()));
}

void JobRunner::SayItWaits(Job* job) {
  job->idle_since = std::min(job->idle_since, clock_->Now());
  if (job->says_it_waits || clock_->Now() - job->idle_since < kSaysItWaitsAfter) return;
  job->says_it_waits = true;
  const WorkerRegistry::Counts count = tools_.workers->Count();
  job->pending.messages.push_back(InfoMessage(
      count.busy > 0 ? absl::StrCat("waits for a worker: none of ", count.busy + count.draining,
                                    " is idle; other jobs, sessions or models have them")
      : count.draining > 0
          ? absl::StrCat("waits for a worker: ",
                         count.draining == 1 ? "the only one is"
                                             : absl::StrCat("all ", count.draining, " are"),
                         " about to leave")
          : "waits for a worker: none has joined"));
  MarkDirty(job);
}

JobRunner::Choice JobRunner::Choose(Job* job, std::vector<Member>* all_idle,
                                    std::vector<Starting>* starts) {
  const v1::SearchOptions& search = job->record.job.spec().search();
  job->idle_since = absl::InfiniteFuture();
  job->says_it_waits = false;
  const auto usable = [&search, job](size_t workers) {
    if (search.strategy() == v1::SearchOptions::SINGLE_DEVICE) return size_t{1};
    if (job->imported_for > 0) workers = std::min(workers, job->imported_for);
    if (search.max_devices() > 0) return std::min<size_t>(workers, search.max_devices());
    // As many as it had, so that it goes on with the same plan and the same bits.
    const int most = job->record.job.most_workers();
    const bool as_before = most > 0 && job->insufficient.empty();
    return as_before ? std::min<size_t>(workers, most) : workers;
  };
  const auto least_members = static_cast<size_t>(std::max(1, job->record.job.spec().min_devices()));
  std::vector<Member> idle =
      cut_off_.LeaveOut(*all_idle, usable(all_idle->size()), least_members, clock_->Now());
  const auto choose = [&usable, job](const std::vector<Member>& from) {
    const size_t most = usable(from.size());
    if (job->insufficient.empty()) return std::vector<Member>(from.begin(), from.begin() + most);
    return SelectLargestWorkers(from, job->enough, most);
  };
  const auto is_in_vain = [job](const std::vector<Member>& with) {
    return absl::c_any_of(job->insufficient, [memory = MemoryOfMembers(with)](const auto& tried) {
      return !IsLessInAny(tried, memory);
    });
  };
  std::vector<Member> members = choose(idle);
  const absl::Duration waited = clock_->Now() - job->recovering_since;
  if (job->life.state == v1::RECOVERING && job->life.attempts_without_progress > 0 &&
      waited <
          std::min(kMaxBackoff,
                   kInitialBackoff * (1 << std::min(job->life.attempts_without_progress, 10)))) {
    return Choice::kWaits;
  }
  // From the first worker on: after a restart of all of them, others are about to join.
  if (job->life.state == v1::RECOVERING || job->waits_for_workers) {
    job->workers_since = std::min(job->workers_since, clock_->Now());
    const size_t wanted = job->workers_before > 0 ? static_cast<size_t>(job->workers_before)
                                                  : usable(std::numeric_limits<size_t>::max());
    if (members.size() < wanted &&
        clock_->Now() - job->workers_since < options_.recovery_grace_period) {
      return Choice::kWaits;
    }
    job->waits_for_workers = false;
  }
  if (job->life.state == v1::RECOVERING && is_in_vain(members)) {
    // Jobs behind this one wait only if busy training workers could supply what it lacks.
    std::vector<Member> reachable = TrainingWorkers();
    reachable.insert(reachable.end(), idle.begin(), idle.end());
    return is_in_vain(choose(reachable)) ? Choice::kGoOn : Choice::kWaits;
  }
  const bool imported = search.strategy() == v1::SearchOptions::IMPORTED;
  if (!job->planned.has_value()) {  // since the coordinator's restart
    absl::StatusOr<JobRecord> full = store_->Get(job->record.job.id());
    if (!full.ok()) {
      job->retry_at = absl::Now() + kStoreRetry;
      return Choice::kGoOn;
    }
    job->planned = PlannedWorkers(full->job.spec().search());
    job->has_plan = full->job.spec().search().has_imported();
  }
  // A search that starts from an imported plan needs that plan's devices too, and may use more.
  const size_t planned = *job->planned;
  if (imported) job->imported_for = std::max<size_t>(planned, 1);
  members.resize(std::min(members.size(), usable(members.size())));
  // Once idle and training workers together suffice, the jobs behind this one wait and freed
  // workers are kept for it, so that smaller jobs cannot starve it. Until then (a worker may
  // serve forever, or never join) the other jobs go ahead.
  const auto wait_for = [&](size_t workers, const std::string& message) {
    if (job->waits_for != static_cast<int>(workers)) {
      job->waits_for = static_cast<int>(workers);
      job->pending.messages.push_back(InfoMessage(message));
      MarkDirty(job);
    }
    const bool may_have =
        search.max_devices() == 0 || workers <= static_cast<size_t>(search.max_devices());
    job->parked_for = may_have ? job->waits_for : std::numeric_limits<int>::max();
    return may_have && idle.size() + static_cast<size_t>(held_) >= workers ? Choice::kWaits
                                                                           : Choice::kParks;
  };
  // The first attempt keeps the plan's worker count; later ones may use fewer (see Attempt).
  if (job->life.attempts == 0 && members.size() < planned) {
    job->workers_before = static_cast<int>(planned);
    return wait_for(planned,
                    absl::StrCat(job->has_plan ? "the imported plan" : "the pipeline", " is for ",
                                 planned, " workers; waiting for that many to be idle"));
  }
  if (const auto least = static_cast<size_t>(job->record.job.spec().min_devices());
      members.size() < least) {
    return wait_for(least,
                    absl::StrCat("at least ", least, " workers are wanted (min_devices), and ",
                                 members.size(), " are idle; waiting for more"));
  }
  job->waits_for = 0;
  const std::string id = job->record.job.id();
  if (!tools_.workers->Assign(members, id).ok()) return Choice::kWaits;
  Starting& start = starts->emplace_back();
  start.job = job->shared_from_this();
  start.before = job->life;
  start.most_before = job->record.job.most_workers();
  if (idle.size() < all_idle->size()) start.left_out = NamesOfMissing(idle, *all_idle);
  job->record.job.set_most_workers(std::max(start.most_before, static_cast<int>(members.size())));
  HoldDevices(job, static_cast<int>(members.size()));
  Apply(job, {.kind = JobEventKind::kWorkersReady}).IgnoreError();
  std::set<std::string> taken;
  for (const Member& member : members) taken.insert(member.lease.worker_id());
  all_idle->erase(std::remove_if(all_idle->begin(), all_idle->end(),
                                 [&](const Member& member) {
                                   return taken.contains(member.lease.worker_id());
                                 }),
                  all_idle->end());
  start.members = std::move(members);
  return Choice::kStarts;
}

void JobRunner::Begin(std::vector<Starting> starts) {
  if (starts.empty()) return;
  // Workers identify attempts by number: a number must be durable before it is used.
  std::vector<Job*> jobs;
  for (const Starting& start : starts) jobs.push_back(start.job.get());
  const std::vector<absl::Status> flushed = FlushAll(jobs);
  std::vector<absl::StatusOr<JobRecord>> full(starts.size());
  mutex_.Unlock();
  for (size_t i = 0; i < starts.size(); ++i) {
    full[i] = flushed[i].ok() ? store_->Get(starts[i].job->record.job.id()) : flushed[i];
  }
  mutex_.Lock();
  for (size_t i = 0; i < starts.size(); ++i) {
    Starting& start = starts[i];
    Job* const job = start.job.get();
    // It may have been cancelled meanwhile, and even resumed.
    const bool goes_on = IsActive(job->life.state);
    if (goes_on && full[i].ok() && !stopping_) {
      BeginAttempt(std::move(start), *std::move(full[i]));
      continue;
    }
    ReleaseDevices(job);
    if (goes_on) {
      job->life = start.before;
      job->record.job.set_state(start.before.state);
      job->record.job.set_attempts(start.before.attempts);
      job->record.job.set_most_workers(start.most_before);
      if (!full[i].ok()) job->retry_at = absl::Now() + kStoreRetry;
      tools_.workers->Release(job->record.job.id());
      MarkDirty(job);
      Settle(job);
    } else {
      Apply(job, {.kind = JobEventKind::kStopped, .attempt = job->life.attempts}).IgnoreError();
    }
  }
}

void JobRunner::BeginAttempt(Starting start, JobRecord full) {
  Job* const job = start.job.get();
  const std::string id = job->record.job.id();
  // From an attempt before the coordinator's restart.
  if (job->enough.workers == 0) job->enough = MemoryOf(full.job.plan().devices());
  AttemptTask task;
  task.record = std::move(full);
  task.record.job.set_checkpoint_step(job->life.checkpoint_step);
  task.checkpoint = job->record.checkpoint_dir;
  task.attempt = job->life.attempts;
  task.members = start.members;
  if (!start.left_out.empty() && job->life.attempts > 1) {
    job->pending.messages.push_back(
        WarningMessage(absl::StrCat("without ", start.left_out,
                                    ", which others could not reach, or which could not reach "
                                    "others")));
    MarkDirty(job);
  }
  task.enough = job->enough;
  task.validations = job->validations;
  task.stream = job->stream;
  job->workers_before = static_cast<int>(start.members.size());
  job->running_since = absl::InfiniteFuture();
  job->moving = false;
  job->drain_asked_at = absl::InfinitePast();
  job->attempt = options_.new_attempt != nullptr
                     ? options_.new_attempt(tools_, std::move(task), this)
                     : std::make_unique<Attempt>(tools_, std::move(task), this);
  active_.insert(job->number);
  metrics_->AttemptStarted();
  job->checkpoints_removed = false;
  job->only_last_stay = false;
  job->thinned_whole = false;
  Settle(job);
  const std::string kept = job->record.checkpoint_dir;
  const int64_t best_steps = job->validations.kept_steps();
  const int32_t attempts = job->life.attempts;
  const bool recorded = IsRecordedHere(*job);
  const int64_t checkpoint_step = job->life.checkpoint_step;
  job->thread = std::thread([this, job, id, kept, best_steps, attempts, recorded, checkpoint_step] {
    if (attempts > 1) RemoveLeftValues(*tools_.data_folder, id);
    if (attempts > 1 && recorded) RemoveUnrecordedOf(id, attempts, checkpoint_step);
    if (attempts > 1 && !recorded) {
      RemoveCheckpoints(*tools_.checkpoints, id, attempts, kept, best_steps);
    }
    AttemptEnd end = job->attempt->Run();
    {
      absl::MutexLock lock(&mutex_);
      job->end = std::move(end);
      job->attempt_over = true;
    }
    Wake();
  });
}

}  // namespace espalier
