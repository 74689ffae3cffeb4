// The scheduling part of JobRunner: which job gets which workers next.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/jobs/checkpoint_folders.h"
#include "server/jobs/job_message.h"
#include "server/jobs/job_runner.h"
#include "server/jobs/select_workers.h"

namespace espalier {
namespace {

// Backoff between attempts without progress.
constexpr absl::Duration kInitialBackoff = absl::Milliseconds(100);
constexpr absl::Duration kMaxBackoff = absl::Seconds(5);
constexpr absl::Duration kSaysItWaitsAfter = absl::Seconds(3);

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
  std::vector<Job*> waiting;
  for (auto& [id, job] : jobs_) {
    const bool waits = job->life.state == v1::QUEUED || job->life.state == v1::RECOVERING;
    if (waits && job->attempt == nullptr && !job->life.attempt_running)
      waiting.push_back(job.get());
  }
  // Interrupted jobs first, then in order of submission.
  std::sort(waiting.begin(), waiting.end(), [](const Job* a, const Job* b) {
    return std::make_pair(a->life.state == v1::QUEUED, a->number) <
           std::make_pair(b->life.state == v1::QUEUED, b->number);
  });
  for (Job* job : waiting) {
    if (!TryStart(job)) return;
  }
}

std::vector<Member> JobRunner::TrainingWorkers() const {
  std::vector<Member> members;
  for (const auto& [id, job] : jobs_) {
    if (job->attempt == nullptr) continue;
    const std::vector<Member>& own = job->attempt->members();
    members.insert(members.end(), own.begin(), own.end());
  }
  return members;
}

int JobRunner::CanGrowBy(const Job& job) const {
  if (stopping_ || job.growing || job.attempt == nullptr || job.life.state != v1::RUNNING) return 0;
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
  for (const auto& [id, other] : jobs_) {
    if (other->life.state == v1::QUEUED || other->life.state == v1::RECOVERING) return 0;
  }
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
  const int live = tools_.workers->Live();
  job->pending.messages.push_back(
      InfoMessage(live == 0 ? "waits for a worker: none has joined"
                            : absl::StrCat("waits for a worker: none of ", live,
                                           " is idle; other jobs, sessions or models have them")));
  job->dirty = true;
}

bool JobRunner::TryStart(Job* job) {
  // The store's error may concern this job only, so the others do not wait.
  if (absl::Now() < job->retry_at) return true;
  const v1::SearchOptions& search = job->record.job.spec().search();
  std::vector<Member> idle = tools_.workers->Idle();
  if (idle.empty()) {
    SayItWaits(job);
    return false;
  }
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
  const std::vector<Member> all_idle = idle;
  idle = cut_off_.LeaveOut(std::move(idle), usable(idle.size()), least_members, clock_->Now());
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
    return false;
  }
  // From the first worker on: after a restart of all of them, others are about to join.
  if (job->life.state == v1::RECOVERING || job->waits_for_workers) {
    job->workers_since = std::min(job->workers_since, clock_->Now());
    const size_t wanted = job->workers_before > 0 ? static_cast<size_t>(job->workers_before)
                                                  : usable(std::numeric_limits<size_t>::max());
    if (members.size() < wanted &&
        clock_->Now() - job->workers_since < options_.recovery_grace_period) {
      return false;
    }
    job->waits_for_workers = false;
  }
  if (job->life.state == v1::RECOVERING && is_in_vain(members)) {
    // Jobs behind this one wait only if busy training workers could supply what it lacks.
    std::vector<Member> reachable = TrainingWorkers();
    reachable.insert(reachable.end(), idle.begin(), idle.end());
    return is_in_vain(choose(reachable));
  }
  absl::StatusOr<JobRecord> full = store_->Get(job->record.job.id());
  if (!full.ok()) {
    job->retry_at = absl::Now() + kStoreRetry;
    return true;
  }
  // From an attempt before the coordinator's restart.
  if (job->enough.workers == 0) job->enough = MemoryOf(full->job.plan().devices());
  const bool imported = search.strategy() == v1::SearchOptions::IMPORTED;
  // A search that starts from an imported plan needs that plan's devices too, and may use more.
  const bool has_plan = full->job.spec().search().has_imported();
  const size_t planned =
      has_plan ? static_cast<size_t>(full->job.spec().search().imported().devices_size())
               : static_cast<size_t>(std::max(0, search.pipeline_stages()));
  if (imported) job->imported_for = std::max<size_t>(planned, 1);
  members.resize(usable(members.size()));
  // The first attempt keeps the plan's worker count; later ones may use fewer (see Attempt).
  if (job->life.attempts == 0 && members.size() < planned) {
    const std::string message =
        absl::StrCat(has_plan ? "the imported plan" : "the pipeline", " is for ", planned,
                     " workers; waiting for that many to be idle");
    if (job->workers_before != static_cast<int>(planned)) {
      job->workers_before = static_cast<int>(planned);
      job->pending.messages.push_back(InfoMessage(message));
      job->dirty = true;
    }
    // Once idle and training workers together suffice, the jobs behind this one wait and freed
    // workers are kept for it, so that smaller jobs cannot starve it. Until then (a worker may
    // serve forever, or never join) the other jobs go ahead.
    return usable(idle.size() + TrainingWorkers().size()) < planned;
  }
  const std::string id = job->record.job.id();
  if (const auto least = static_cast<size_t>(job->record.job.spec().min_devices());
      members.size() < least) {
    if (job->waits_for != static_cast<int>(least)) {
      job->waits_for = static_cast<int>(least);
      job->pending.messages.push_back(
          InfoMessage(absl::StrCat("at least ", least, " workers are wanted (min_devices), and ",
                                   members.size(), " are idle; waiting for more")));
      job->dirty = true;
    }
    // As for the workers of a plan, above.
    return usable(idle.size() + TrainingWorkers().size()) < least;
  }
  job->waits_for = 0;
  if (!tools_.workers->Assign(members, id).ok()) return false;
  const JobLifecycle before = job->life;
  const int most_before = job->record.job.most_workers();
  job->record.job.set_most_workers(std::max(most_before, static_cast<int>(members.size())));
  Apply(job, {.kind = JobEventKind::kWorkersReady}).IgnoreError();
  // Workers identify attempts by number: a number must be durable before it is used.
  if (!Flush(job).ok()) {
    job->life = before;
    job->record.job.set_state(before.state);
    job->record.job.set_attempts(before.attempts);
    job->record.job.set_most_workers(most_before);
    tools_.workers->Release(id);
    return false;
  }
  AttemptTask task;
  task.record = *std::move(full);
  task.record.job.set_checkpoint_step(job->life.checkpoint_step);
  task.checkpoint = job->record.checkpoint_dir;
  task.attempt = job->life.attempts;
  task.members = members;
  if (idle.size() < all_idle.size() && job->life.attempts > 1) {
    job->pending.messages.push_back(WarningMessage(
        absl::StrCat("without ", NamesOfMissing(idle, all_idle),
                     ", which others could not reach, or which could not reach others")));
    job->dirty = true;
  }
  task.enough = job->enough;
  task.checkpoint_root = JobFolder(id);
  task.validations = job->validations;
  task.stream = job->stream;
  job->workers_before = static_cast<int>(members.size());
  job->running_since = absl::InfiniteFuture();
  job->growing = false;
  job->attempt = std::make_unique<Attempt>(tools_, std::move(task), this);
  metrics_->AttemptStarted();
  job->checkpoints_removed = false;
  RemoveCheckpoints(*tools_.files, JobFolder(id), job->record.checkpoint_dir,
                    job->validations.kept_steps());
  job->thread = std::thread([this, job] {
    AttemptEnd end = job->attempt->Run();
    {
      absl::MutexLock lock(&mutex_);
      job->end = std::move(end);
      job->attempt_over = true;
    }
    Wake();
  });
  return true;
}

}  // namespace espalier
