// Plans replays at checkpoints: ReplayPlanner::AddCheckpoints.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/replay/checkpoint_answers.h"
#include "server/replay/checkpoint_evaluations.h"
#include "server/replay/plan_totals.h"
#include "server/replay/replay_planner.h"

namespace espalier {
namespace {

// A guess, for estimates.
constexpr double kEvaluationSeconds = 1;
constexpr double kStateSeconds = 0.01;

bool IsOfTraining(const ProbeExpression& probe) {
  return std::any_of(probe.targets.begin(), probe.targets.end(), [](const ProbeTarget& target) {
    return target.kind == ProbeTarget::kGrad || target.kind == ProbeTarget::kUpdate;
  });
}

}  // namespace

absl::Status ReplayPlanner::AddCheckpoints(const v1::ReplaySpec& spec, ReplayedRun* run,
                                           PlanTotals* totals) const {
  const bool evaluates = spec.evaluate_holdout() || spec.has_evaluate();
  for (const ProbeExpression& probe : totals->probes) {
    if (AnsweredByCheckpoint(probe)) {
      run->state_probes.push_back(probe);
    } else if (IsOfTraining(probe)) {
      return absl::InvalidArgumentError(absl::StrCat("log: ", ToString(probe),
                                                     ": gradients and updates are of steps, which "
                                                     "are trained again without --at=checkpoints"));
    } else if (!evaluates) {
      return absl::InvalidArgumentError(
          absl::StrCat("log: ", ToString(probe),
                       ": checkpoints have parameters and optimizer state; name the examples to "
                       "compute it for: --evaluate=holdout, or a dataset"));
    } else {
      run->evaluation_probes.push_back(probe);
    }
  }
  if (run->state_probes.empty() && !evaluates) {
    return absl::InvalidArgumentError(
        "at_checkpoints: nothing is asked; log param(...) or state(...), or evaluate examples");
  }
  // Any plan can read any checkpoint.
  const v1::Plan& plan = run->recording.attempts().rbegin()->plan();
  absl::StatusOr<std::unique_ptr<ReplayProgram>> made =
      ReplayProgram::Make(tools_, run->spec, plan, run->state_probes);
  if (made.ok()) run->state_program = *std::move(made);
  // Otherwise tensors are read as one worker holds them.
  if (!made.ok() && !absl::IsFailedPrecondition(made.status())) return made.status();
  const auto add = [&](v1::ReplaySegment::Kind kind, int most_segments, size_t ranks,
                       double seconds) -> absl::Status {
    v1::ReplaySegment whole;
    whole.set_kind(kind);
    whole.set_job_id(run->job_id);
    whole.set_first_step(run->logged.first);
    whole.set_end_step(run->logged.end);
    std::vector<int64_t> chosen = run->CheckpointsOf(whole, run->logged.every);
    if (spec.segments() > 0) {
      const absl::StatusOr<LoggedSteps> part =
          PartOfSteps({0, static_cast<int64_t>(chosen.size()), 1}, spec.segment(), spec.segments());
      if (!part.ok()) return part.status();
      chosen = {chosen.begin() + part->first, chosen.begin() + part->end};
    }
    const auto parts = std::min<int64_t>(most_segments, static_cast<int64_t>(chosen.size()));
    for (int64_t i = 1; i <= parts; ++i) {
      const LoggedSteps part = *PartOfSteps({0, static_cast<int64_t>(chosen.size()), 1}, i, parts);
      v1::ReplaySegment segment = whole;
      segment.set_first_step(chosen[static_cast<size_t>(part.first)]);
      segment.set_end_step(chosen[static_cast<size_t>(part.end - 1)] + 1);
      segment.set_checkpoint_step(segment.first_step());
      segment.set_checkpoints(part.count());
      totals->AddSegment(std::move(segment), seconds * static_cast<double>(part.count()), ranks);
    }
    totals->estimate.set_logged_steps(totals->estimate.logged_steps() +
                                      static_cast<int64_t>(chosen.size()));
    if (kind == v1::ReplaySegment::STATE && run->state_program != nullptr) {
      totals->AddRows(*run->state_program, static_cast<int64_t>(chosen.size()));
    }
    return absl::OkStatus();
  };
  if (!run->state_probes.empty()) {
    if (run->state_program != nullptr) {
      totals->AddNames(run->state_probes, run->state_program->probes(), run->name());
    }
    if (absl::Status s = add(v1::ReplaySegment::STATE, 1, 0, kStateSeconds); !s.ok()) return s;
  }
  if (!evaluates) return absl::OkStatus();
  absl::StatusOr<v1::TrainingSpec> evaluated = SpecToEvaluate(run->spec, spec);
  if (!evaluated.ok()) return evaluated.status();
  run->evaluated = std::make_shared<const v1::TrainingSpec>(*std::move(evaluated));
  made = ReplayProgram::Make(tools_, *run->evaluated, plan, {});
  if (made.ok()) run->evaluation_program = *std::move(made);
  if (!made.ok() && !(absl::IsFailedPrecondition(made.status()) && spec.any_plan())) {
    return made.status();
  }
  if (run->evaluation_program != nullptr) {
    const absl::StatusOr<EvaluationProbes> found =
        FindEvaluationProbes(tools_, *run->evaluation_program, run->evaluation_probes);
    if (!found.ok()) return found.status();
    totals->AddNames(run->evaluation_probes, found->found, run->name());
    for (const std::string& note : found->notes) {
      totals->estimate.add_notes(absl::StrCat(run->name(), ": ", note));
    }
  }
  const size_t ranks = spec.any_plan() ? 1 : run->RanksAt(run->logged.end);
  if (absl::Status s = CheckWorkers(spec, *run, ranks); !s.ok()) return s;
  return add(v1::ReplaySegment::EVALUATION,
             std::max(1, totals->most_workers / static_cast<int>(ranks)), ranks,
             kEvaluationSeconds);
}

}  // namespace espalier
