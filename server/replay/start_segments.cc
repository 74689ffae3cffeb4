// How a replay starts its segments: which idle workers get which programs.
#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/replay/evaluation_segment.h"
#include "server/replay/loss_check.h"
#include "server/replay/replayed_segment.h"
#include "server/replay/running_replay.h"
#include "server/replay/state_segment.h"

namespace espalier {
namespace {

std::string DescribeDevices(const v1::Plan& plan) {
  std::map<std::string, int> models;
  for (const v1::Device& device : plan.devices()) ++models[device.model()];
  return absl::StrJoin(models, " and ", [](std::string* out, const auto& model) {
    absl::StrAppend(out, model.second, " x '", model.first, "'");
  });
}

}  // namespace

std::vector<Member> MatchWorkers(const v1::Plan& plan, std::vector<Member> idle) {
  std::vector<Member> members;
  for (const v1::Device& planned : plan.devices()) {
    const auto found = std::find_if(idle.begin(), idle.end(), [&](const Member& member) {
      return member.device.kind() == planned.kind() && member.device.model() == planned.model() &&
             member.device.memory_bytes() >= planned.memory_bytes();
    });
    if (found == idle.end()) return {};
    members.push_back(std::move(*found));
    idle.erase(found);
  }
  return members;
}

absl::StatusOr<std::shared_ptr<const ReplayProgram>> RunningReplay::ProgramFor(
    const Segment& segment, size_t most, const std::vector<Member>& idle,
    std::vector<Member>* members) {
  const ReplayedRun& run = *segment.run;
  const bool trains = segment.kind == v1::ReplaySegment::TRAINING;
  std::shared_ptr<const ReplayProgram> recorded =
      trains ? run.programs[run.AttemptAt(segment.cut.checkpoint)] : run.evaluation_program;
  if (recorded != nullptr) *members = MatchWorkers(recorded->plan(), idle);
  if (members->size() > most) members->clear();
  if (!members->empty() || !spec_.any_plan()) return recorded;
  absl::StatusOr<ReplayQuestions> asked = ReplayQuestions();
  if (trains) asked = tools_.planner->Parse(spec_);
  if (!asked.ok()) return asked.status();
  // As few workers as the model fits on, so that as many segments as possible run at once.
  absl::StatusOr<std::shared_ptr<const ReplayProgram>> program =
      absl::ResourceExhaustedError("no worker is idle");
  for (size_t count = 1; count <= std::min(most, idle.size()); count *= 2) {
    std::vector<v1::Device> devices;
    std::string key = absl::StrCat(run.job_id, trains ? "" : " evaluation");
    for (size_t i = 0; i < count; ++i) {
      devices.push_back(idle[i].device);
      absl::StrAppend(&key, "\n", devices.back().model(), " ", devices.back().memory_bytes());
    }
    if (const auto known = other_plans_.find(key); known != other_plans_.end()) {
      program = known->second;
    } else {
      program = tools_.planner->PlanFor(trains ? run.spec : *run.evaluated, *asked, devices);
    }
    if (program.ok()) {
      other_plans_[key] = *program;
      members->assign(idle.begin(), idle.begin() + static_cast<std::ptrdiff_t>(count));
      return program;
    }
    if (!absl::IsResourceExhausted(program.status())) return program;
  }
  return program;
}

std::unique_ptr<SegmentWork> RunningReplay::MakeWork(size_t number,
                                                     std::shared_ptr<const ReplayProgram> program,
                                                     const std::vector<Member>& members) {
  std::string replay_id;
  Segment* segment = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    replay_id = info_.id();
    segment = segments_[number].get();
  }
  auto on_progress = [this, segment, number](const SegmentProgress& progress) {
    absl::MutexLock lock(&mutex_);
    segment->progress = progress;
    v1::ReplaySegment& shown = *info_.mutable_segments(static_cast<int>(number));
    if (segment->kind == v1::ReplaySegment::TRAINING) {
      // Steps that an earlier try has trained are not done twice.
      const int64_t done =
          std::max(segment->done_before, segment->cut.checkpoint + progress.steps_done);
      shown.set_steps_done(done - shown.checkpoint_step());
      *shown.mutable_comparison() = BothOf(segment->compared, progress.comparison);
    } else {
      // Those that this try found done count, too.
      const auto left = static_cast<int64_t>(segment->checkpoints.size());
      shown.set_steps_done(shown.checkpoints() - left + progress.steps_done);
    }
    SumRows();
    publish_(info_, progress.durable);
  };
  if (segment->kind == v1::ReplaySegment::TRAINING) {
    ReplayedSegmentTask task;
    task.replay_id = replay_id;
    task.number = static_cast<int>(number);
    task.run = segment->run;
    task.program = std::move(program);
    task.cut = segment->cut;
    task.counted_from = segment->done_before;
    task.members = members;
    return std::make_unique<ReplayedSegment>(tools_, std::move(task), std::move(on_progress));
  }
  CheckpointSegmentTask task;
  task.replay_id = replay_id;
  task.number = static_cast<int>(number);
  task.run = segment->run;
  task.checkpoints = segment->checkpoints;
  if (segment->kind == v1::ReplaySegment::STATE) {
    task.questions = segment->run->state_questions;
    return std::make_unique<StateSegment>(tools_, std::move(task), std::move(program),
                                          std::move(on_progress));
  }
  task.questions = segment->run->evaluation_questions;
  return std::make_unique<EvaluationSegment>(tools_, std::move(task), segment->run->evaluated,
                                             std::move(program), members, std::move(on_progress));
}

absl::StatusOr<std::string> RunningReplay::StartSegment(size_t number, size_t most,
                                                        std::vector<Member>* idle) {
  Segment* segment = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    segment = segments_[number].get();
  }
  std::vector<Member> members;
  absl::StatusOr<std::shared_ptr<const ReplayProgram>> program = segment->run->state_program;
  if (segment->kind != v1::ReplaySegment::STATE) {
    program = ProgramFor(*segment, most, *idle, &members);
    if (absl::IsResourceExhausted(program.status())) {
      return absl::StrCat("workers: ", program.status().message());
    }
    if (!program.ok()) {
      return absl::Status(program.status().code(),
                          absl::StrCat(segment->run->name(), ": ", program.status().message()));
    }
    if (members.empty()) {
      return absl::StrCat("idle workers like those of the recording, ",
                          DescribeDevices((*program)->plan()),
                          "; --any-plan replays on others, within a tolerance");
    }
  }
  std::erase_if(*idle, [&](const Member& member) {
    return std::any_of(members.begin(), members.end(), [&](const Member& taken) {
      return taken.lease.worker_id() == member.lease.worker_id();
    });
  });
  std::unique_ptr<SegmentWork> work = MakeWork(number, *program, members);
  absl::MutexLock lock(&mutex_);
  segment->phase = Phase::kRunning;
  segment->ended = false;
  segment->progress = {};
  segment->members = members;
  segment->work = std::move(work);
  segment->thread = std::thread([this, segment] {
    const absl::Status status = segment->work->Run();
    absl::MutexLock ended(&mutex_);
    segment->status = status;
    segment->ended = true;
    changed_.SignalAll();
  });
  info_.set_state(v1::REPLAY_RUNNING);
  NoteWaiting("");
  v1::ReplaySegment& shown = *info_.mutable_segments(static_cast<int>(number));
  shown.set_state(v1::REPLAY_RUNNING);
  if (segment->kind != v1::ReplaySegment::TRAINING) {
    shown.set_checkpoint_step(FirstCheckpoint(*segment));
  }
  shown.clear_workers();
  for (const Member& member : members) shown.add_workers(member.lease.worker_id());
  publish_(info_, /*durable=*/true);
  return "";
}

void RunningReplay::StartWhatCan() {
  std::vector<size_t> waiting;
  size_t in_use = 0, most = SIZE_MAX;
  {
    absl::MutexLock lock(&mutex_);
    if (info_.has_difference()) return;
    for (size_t i = 0; i < segments_.size(); ++i) {
      if (segments_[i]->phase == Phase::kWaiting) waiting.push_back(i);
      if (segments_[i]->phase == Phase::kRunning) in_use += segments_[i]->members.size();
    }
    if (spec_.max_workers() > 0) most = static_cast<size_t>(spec_.max_workers());
  }
  std::vector<Member> idle = tools_.attempts->workers->Idle();
  for (const size_t number : waiting) {
    const size_t before = idle.size();
    const absl::StatusOr<std::string> missing =
        StartSegment(number, most > in_use ? most - in_use : 0, &idle);
    in_use += before - idle.size();
    absl::MutexLock lock(&mutex_);
    if (!missing.ok()) {
      segments_[number]->status = missing.status();
      segments_[number]->ended = true;
      segments_[number]->phase = Phase::kRunning;  // its result is taken
    } else if (!missing->empty() && in_use == 0 && number == waiting.front()) {
      NoteWaiting(*missing);
    }
  }
}

}  // namespace espalier
