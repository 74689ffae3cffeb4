// When an attempt of a job of JobRunner ends at a checkpoint, so that the next one has other
// workers: more, since some are idle, or fewer, since some are about to leave.
#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/jobs/job_message.h"
#include "server/jobs/job_runner.h"

namespace espalier {
namespace {

constexpr absl::Duration kAskAgain = absl::Seconds(3);

std::string NamesOfWorkers(const std::vector<Member>& members) {
  return absl::StrCat(members.size() == 1 ? "worker " : "workers ",
                      absl::StrJoin(members, ", ", [](std::string* out, const Member& member) {
                        absl::StrAppend(
                            out, member.lease.worker_id(),
                            member.name.empty() ? "" : absl::StrCat(" (", member.name, ")"));
                      }));
}

std::string AboutToLeave(const std::vector<Member>& leaving) {
  return absl::StrCat(NamesOfWorkers(leaving), leaving.size() == 1 ? " is" : " are",
                      " about to leave");
}

}  // namespace

std::vector<Member> JobRunner::LeavingOf(const Job& job) const {
  std::vector<Member> leaving;
  for (const Member& member : job.attempt->members()) {
    if (tools_.workers->IsDraining(member.lease)) leaving.push_back(member);
  }
  return leaving;
}

std::string JobRunner::GoesOnWithout(const Job& job, const std::vector<Member>& leaving) const {
  const v1::Job& record = job.record.job;
  const size_t left =
      job.attempt->members().size() - leaving.size() + tools_.workers->Idle().size();
  const auto least = static_cast<size_t>(std::max(1, record.spec().min_devices()));
  const std::string from = job.life.checkpoint_step > 0
                               ? absl::StrCat("from step ", job.life.checkpoint_step)
                               : "from the beginning";
  if (left >= least) {
    return absl::StrCat(AboutToLeave(leaving), ": goes on ", from, " without ",
                        leaving.size() == 1 ? "it" : "them");
  }
  return absl::StrCat(
      AboutToLeave(leaving), ": goes on ", from, " once there are ",
      least == 1 ? "other workers" : absl::StrCat("at least ", least, " workers (min_devices)"));
}

std::optional<std::string> JobRunner::WhyItMoves(const Job& job) const {
  if (stopping_ || job.moving || job.attempt == nullptr || !IsActive(job.life.state)) {
    return std::nullopt;
  }
  // What is left to do is to export the model.
  const v1::Job& record = job.record.job;
  if (record.total_steps() > 0 && job.life.checkpoint_step >= record.total_steps()) {
    return std::nullopt;
  }
  const std::vector<Member> leaving = LeavingOf(job);
  if (!leaving.empty()) return GoesOnWithout(job, leaving);
  const int more = CanGrowBy(job);
  if (more == 0) return std::nullopt;
  return absl::StrCat(more,
                      more == 1 ? " more worker is idle: going on with it from step "
                                : " more workers are idle: going on with them from step ",
                      job.life.checkpoint_step);
}

void JobRunner::Move(Job* job) {
  job->moving = true;
  // The next attempt waits for no worker that leaves.
  const size_t stay = job->attempt->members().size() - LeavingOf(*job).size();
  job->workers_before = static_cast<int>(std::max<size_t>(stay, 1));
  job->attempt->Stop();
}

void JobRunner::WatchDrains() {
  if (stopping_) return;
  const absl::Time now = clock_->Now();
  for (const int64_t number : active_) {
    Job& job = *by_number_.at(number);
    if (job.attempt_over || job.moving || !IsActive(job.life.state)) continue;
    const std::vector<Member> leaving = LeavingOf(job);
    if (leaving.empty()) continue;
    const v1::Job& record = job.record.job;
    if (record.total_steps() > 0 && record.steps_done() >= record.total_steps()) continue;
    const bool asked = job.drain_asked_at != absl::InfinitePast();
    // There is nothing to save, or it is saved, but OnCheckpoint could not move the job.
    if (record.steps_done() <= job.life.checkpoint_step ||
        (asked && job.drain_asked_steps <= job.life.checkpoint_step)) {
      job.pending.messages.push_back(InfoMessage(GoesOnWithout(job, leaving)));
      MarkDirty(&job);
      Move(&job);
      continue;
    }
    // A full disk may have room again. Of a stream, no examples may have come for the step that the
    // attempt has named.
    const bool in_vain = !record.checkpoints_paused().empty() || job.stream != nullptr;
    if (asked && (!in_vain || now - job.drain_asked_at < kAskAgain)) continue;
    if (!asked) {
      job.pending.messages.push_back(DetailMessage(absl::StrCat(
          AboutToLeave(leaving), ": asks for a checkpoint after ", record.steps_done(), " steps")));
      MarkDirty(&job);
    }
    job.drain_asked_at = now;
    job.drain_asked_steps = record.steps_done();
    job.attempt->RequestCheckpoint();
  }
}

}  // namespace espalier
