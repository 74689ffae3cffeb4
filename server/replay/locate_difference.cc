// Where a replay begins to differ from its recording: RunningReplay::Locate.
#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/recordings/recorded_losses.h"
#include "server/replay/replay_ranks.h"
#include "server/replay/running_replay.h"

namespace espalier {
namespace {

// A result that differs by its last bit may change the loss some steps later only.
constexpr int64_t kMostHashedSteps = 32;

std::string NamesOf(const std::vector<Member>& members) {
  return absl::StrJoin(members, ", ", [](std::string* out, const Member& member) {
    absl::StrAppend(out, member.lease.worker_id());
    if (!member.name.empty()) absl::StrAppend(out, " (", member.name, ")");
  });
}

bool Overlap(const std::vector<Member>& a, const std::vector<Member>& b) {
  return std::any_of(a.begin(), a.end(), [&](const Member& one) {
    return std::any_of(b.begin(), b.end(), [&](const Member& other) {
      return one.lease.worker_id() == other.lease.worker_id();
    });
  });
}

// The idle workers, those in `members` first or last.
std::vector<Member> Ordered(std::vector<Member> idle, const std::vector<Member>& members,
                            bool first) {
  std::stable_partition(idle.begin(), idle.end(),
                        [&](const Member& member) { return Overlap({member}, members) == first; });
  return idle;
}

}  // namespace

absl::StatusOr<HashedRun> RunningReplay::RunHashed(const Segment& segment, int number, int64_t step,
                                                   std::vector<Member> members) {
  const ReplayedRun& run = *segment.run;
  const std::shared_ptr<const ReplayProgram>& program =
      run.programs[run.AttemptAt(segment.cut.checkpoint)];
  SegmentTask task;
  {
    absl::MutexLock lock(&mutex_);
    // Apart from the segment's name, and from those of other replays of the job.
    task.name = ReplayAttemptName(run.job_id, absl::StrCat(info_.id(), "-located"), number);
    task.replay_id = info_.id();
  }
  task.attempt = static_cast<uint64_t>(tools_.clock->NowUnixMillis());
  task.job_id = run.job_id;
  task.spec = &run.spec;
  task.program = program.get();
  task.cut = {segment.cut.checkpoint, {step, step + 1, 1}};
  task.checkpoint = run.FolderOf(segment.cut.checkpoint);
  task.number = number;
  task.members = std::move(members);
  HashedRun hashed;
  SegmentRunner runner(*tools_.attempts, std::move(task), &hashed);
  {
    absl::MutexLock lock(&mutex_);
    if (stop_ || cancelled_) return absl::CancelledError("the replay was cancelled");
    locating_ = &runner;
  }
  const absl::Cleanup over = [this] {
    absl::MutexLock lock(&mutex_);
    locating_ = nullptr;
  };
  const absl::Status status =
      runner.Run(std::max(segment.cut.checkpoint, step + 1 - kMostHashedSteps));
  if (!status.ok()) return status;
  return hashed;
}

void RunningReplay::Locate() {
  const Segment* segment = nullptr;
  v1::ReplayDifference difference;
  int number = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (!info_.has_difference() || stop_ || cancelled_) return;
    difference = info_.difference();
    for (size_t i = 0; i < segments_.size(); ++i) {
      const v1::ReplaySegment& shown = info_.segments(static_cast<int>(i));
      if (shown.state() != v1::REPLAY_DIFFERS || shown.job_id() != difference.job_id() ||
          difference.step() >= shown.end_step() || difference.step() < shown.checkpoint_step()) {
        continue;
      }
      segment = segments_[i].get();
      number = static_cast<int>(i);
      // That the bits differ says nothing.
      if (!segment->progress.comparison.bits()) return;
    }
  }
  if (segment == nullptr) return;
  const v1::Plan& plan =
      segment->run->programs[segment->run->AttemptAt(segment->cut.checkpoint)]->plan();
  const WorkerRegistry& workers = *tools_.attempts->workers;
  const std::vector<Member> same =
      MatchWorkers(plan, Ordered(workers.Idle(), segment->members, true));
  const std::vector<Member> others =
      MatchWorkers(plan, Ordered(workers.Idle(), segment->members, false));
  if (same.empty() || others.empty()) return;
  const absl::StatusOr<HashedRun> first = RunHashed(*segment, number, difference.step(), same);
  const absl::StatusOr<HashedRun> second =
      first.ok() ? RunHashed(*segment, number, difference.step(), others) : first.status();
  std::string told;
  if (!first.ok() || !second.ok()) {
    const absl::Status& failure = first.ok() ? second.status() : first.status();
    told = absl::StrCat("it could not be told which operator differs: ", failure.message());
  } else if (const auto found = FirstDifferent(first->steps(), second->steps());
             found.has_value()) {
    const auto repeats = [&](const HashedRun& run) {
      const std::optional<double> loss = run.LossOf(difference.step());
      return loss.has_value() && SameBits(*loss, difference.recorded());
    };
    difference.set_node(found->entry.node());
    difference.set_node_step(found->step);
    told = absl::StrCat("two more replays differ first in step ", found->step, ", operator '",
                        found->entry.node(), "' (", found->entry.op(), "), tensor '",
                        found->entry.tensor(), "'");
    if (Overlap(same, others)) {
      absl::StrAppend(&told, ", both with worker ", NamesOf(same),
                      ", which does not always compute the same");
    } else if (repeats(*second) != repeats(*first)) {
      absl::StrAppend(&told, "; worker ", NamesOf(repeats(*second) ? others : same),
                      " repeats the recording, worker ", NamesOf(repeats(*second) ? same : others),
                      " does not");
    } else {
      absl::StrAppend(&told, " of workers ", NamesOf(same), " and ", NamesOf(others));
    }
  } else if (Overlap(same, others)) {
    told = absl::StrCat("a second replay by worker ", NamesOf(same),
                        " agrees with the first; with other idle workers, a fault of this one "
                        "could be told from one of the recording");
  } else {
    told = absl::StrCat("replays by workers ", NamesOf(same), " and ", NamesOf(others),
                        " agree with each other, so it is the recording that was computed "
                        "otherwise, or from other data");
  }
  absl::MutexLock lock(&mutex_);
  difference.set_cause(absl::StrCat(difference.cause(), ": ", told));
  *info_.mutable_difference() = difference;
}

}  // namespace espalier
