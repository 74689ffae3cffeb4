// Plans replays at checkpoints: ReplayPlanner::AddCheckpoints.
#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/replay/checkpoint_answers.h"
#include "server/replay/checkpoint_evaluations.h"
#include "server/replay/plan_totals.h"
#include "server/replay/replay_planner.h"

namespace espalier {
namespace {

// Guesses, for estimates: what a checkpoint takes besides reading it, and the part of a training
// step that its forward pass takes.
constexpr double kCheckpointSeconds = 0.01;
constexpr double kForwardPart = 1.0 / 3;

constexpr size_t kCheckpointsInError = 20;

// Of one segment of one worker, in seconds.
struct CheckpointCosts {
  double begin = 0;  // once
  double read = 0;   // of each checkpoint
  double work = 0;   // on each checkpoint, once it is read
};

bool IsOfTraining(const ProbeExpression& probe) {
  return std::any_of(probe.targets.begin(), probe.targets.end(), [](const ProbeTarget& target) {
    return target.kind == ProbeTarget::kGrad || target.kind == ProbeTarget::kUpdate;
  });
}

// Whether checkpoints alone answer a graph; otherwise an evaluation may.
absl::StatusOr<bool> IsOfState(const GraphFragment& fragment, bool evaluates) {
  for (const GraphFragment::Input& input : fragment.inputs) {
    if (AnsweredByCheckpoint(input.source)) continue;
    const std::string what =
        absl::StrCat("graph '", fragment.name, "': its input '", input.name, "' ");
    if (IsOfTraining(input.source)) {
      return absl::InvalidArgumentError(
          absl::StrCat(what,
                       "is not in checkpoints: gradients and updates are of steps, which are "
                       "trained again without --at=checkpoints"));
    }
    if (evaluates) return false;
    return absl::InvalidArgumentError(absl::StrCat(
        what,
        "is not in checkpoints, which have param(...) and state(...); name the examples to "
        "compute it for: --evaluate=holdout, or a dataset"));
  }
  return true;
}

// Names of the values that the workers report, besides probes.
std::set<std::string> ReportedValues(const LoweredPlan& lowered) {
  std::set<std::string> names;
  for (const v1::Program& program : lowered.evaluation) {
    for (const v1::Instruction& instruction : program.instructions()) {
      if (instruction.has_report()) names.insert(instruction.report().name());
    }
  }
  return names;
}

// Whether its answer is one of these anyhow.
bool IsReported(const ProbeExpression& probe, const std::set<std::string>& reported) {
  return probe.reduction.kind == Reduction::kFull && probe.targets[0].kind == ProbeTarget::kValue &&
         reported.contains(probe.targets[0].name);
}

// Of an evaluation of so many batches, by the job's own validations, or else by its steps. `own`:
// of the examples of these validations. 0: nothing is known.
double SecondsOfEvaluation(const std::vector<v1::StepReport>& validations, const ReplayedRun& run,
                           int64_t batches, bool own) {
  const v1::Job& job = run.recording.job();
  const int64_t size = std::max<int64_t>(1, run.spec.batch_size());
  const int64_t timed_batches = own ? batches : (job.evaluation_examples() + size - 1) / size;
  std::vector<double> seconds;
  for (const v1::StepReport& validation : validations) {
    if (validation.seconds() > 0) seconds.push_back(validation.seconds());
  }
  double of_batch = kForwardPart * job.median_step_seconds();
  if (!seconds.empty() && timed_batches > 0) {
    const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
    std::nth_element(seconds.begin(), middle, seconds.end());
    of_batch = *middle / static_cast<double>(timed_batches);
  }
  return of_batch * static_cast<double>(batches);
}

// None of the run's is among the steps that are asked for.
absl::Status NoCheckpoint(v1::ReplaySegment asked, const ReplayedRun& run) {
  const std::string steps = absl::StrCat(
      "steps ", asked.first_step(), ":", asked.end_step(),
      run.logged.every > 1 ? absl::StrCat(", every ", run.logged.every) : std::string());
  asked.set_first_step(0);
  asked.set_end_step(run.recording.job().steps_done() + 1);
  std::vector<int64_t> all = run.CheckpointsOf(asked, 1);
  std::string others;
  for (const auto& [checkpoint, url] : run.elsewhere) {
    if (checkpoint < run.logged.first || checkpoint >= run.logged.end) continue;
    others = absl::StrCat("; others are in ", url,
                          " only, which is not used now: start espalierd with --spool=", url);
  }
  if (run.logged.first == 0 && asked.kind() == v1::ReplaySegment::STATE) {
    const std::string why = run.WhyNoInitialState();
    if (!why.empty()) absl::StrAppend(&others, "; step 0 is not among them: ", why);
  }
  const size_t count = all.size();
  if (count > kCheckpointsInError) all.resize(kCheckpointsInError);
  return absl::InvalidArgumentError(absl::StrCat(
      steps, ": ", run.name(), " has no checkpoint there; ",
      all.empty() ? "it has none"
                  : absl::StrCat("it has those of the steps ", absl::StrJoin(all, ", ")),
      count > all.size() ? absl::StrCat(" and ", count - all.size(), " more") : std::string(),
      others));
}

// The steps of `steps` that a replay asks for.
bool IsStepAsked(const ReplayedRun& run, int64_t step) {
  return step >= run.logged.first && step < run.logged.end &&
         (step - run.logged.first) % std::max<int64_t>(1, run.logged.every) == 0;
}

// Notes what cannot be read of what is asked for.
void NoteLeftOut(const ReplayedRun& run, bool reads_state, PlanTotals* totals) {
  std::vector<int64_t> elsewhere;
  for (const auto& [checkpoint, spool] : run.elsewhere) {
    if (IsStepAsked(run, checkpoint)) elsewhere.push_back(checkpoint);
  }
  totals->AddElsewhere(run, elsewhere);
  const std::string why = run.WhyNoInitialState();
  if (!reads_state || why.empty() || !IsStepAsked(run, 0)) return;
  totals->estimate.add_notes(absl::StrCat(run.name(),
                                          ": parameters and optimizer state at step 0 are left "
                                          "out: ",
                                          why));
}

// Chooses the checkpoints of a replay, and cuts them into at most so many segments. Returns how
// many they are.
absl::StatusOr<int64_t> AddSegments(const v1::ReplaySpec& spec, const ReplayedRun& run,
                                    v1::ReplaySegment::Kind kind, int most_segments, size_t ranks,
                                    const CheckpointCosts& costs, PlanTotals* totals) {
  v1::ReplaySegment whole;
  whole.set_kind(kind);
  whole.set_job_id(run.job_id);
  whole.set_first_step(run.logged.first);
  whole.set_end_step(run.logged.end);
  std::vector<int64_t> chosen = run.CheckpointsOf(whole, run.logged.every);
  if (chosen.empty()) return NoCheckpoint(whole, run);
  if (spec.segments() > 0) {
    const absl::StatusOr<LoggedSteps> part =
        PartOfSteps({0, static_cast<int64_t>(chosen.size()), 1}, spec.segment(), spec.segments());
    if (!part.ok()) return part.status();
    chosen = {chosen.begin() + part->first, chosen.begin() + part->end};
  }
  const auto count = static_cast<int64_t>(chosen.size());
  const auto parts = std::min<int64_t>(most_segments, count);
  for (int64_t i = 1; i <= parts; ++i) {
    const LoggedSteps part = *PartOfSteps({0, count, 1}, i, parts);
    v1::ReplaySegment segment = whole;
    segment.set_first_step(chosen[static_cast<size_t>(part.first)]);
    segment.set_end_step(chosen[static_cast<size_t>(part.end - 1)] + 1);
    segment.set_checkpoint_step(segment.first_step());
    segment.set_checkpoints(part.count());
    const double fetching =
        totals->AddFetched(run, {chosen.begin() + part.first, chosen.begin() + part.end});
    const double loading = costs.begin + costs.read * static_cast<double>(part.count()) + fetching;
    totals->loading += loading;
    totals->AddSegment(std::move(segment), loading + costs.work * static_cast<double>(part.count()),
                       ranks);
  }
  totals->estimate.set_logged_steps(totals->estimate.logged_steps() + count);
  return count;
}

}  // namespace

absl::Status ReplayPlanner::AddCheckpoints(const v1::ReplaySpec& spec, ReplayedRun* run,
                                           PlanTotals* totals) const {
  const bool evaluates = spec.evaluate_holdout() || spec.has_evaluate();
  for (const ProbeExpression& probe : totals->asked.probes) {
    if (AnsweredByCheckpoint(probe)) {
      run->state_questions.probes.push_back(probe);
    } else if (IsOfTraining(probe)) {
      return absl::InvalidArgumentError(absl::StrCat("log: ", ToString(probe),
                                                     ": gradients and updates are of steps, which "
                                                     "are trained again without --at=checkpoints"));
    } else if (!evaluates) {
      return absl::InvalidArgumentError(
          absl::StrCat("log: ", ToString(probe),
                       ": checkpoints have parameters and optimizer state, param(...) and "
                       "state(...); name the examples to compute other values for: "
                       "--evaluate=holdout, or a dataset"));
    } else {
      run->evaluation_questions.probes.push_back(probe);
    }
  }
  for (const GraphFragment& fragment : totals->asked.fragments) {
    const absl::StatusOr<bool> of_state = IsOfState(fragment, evaluates);
    if (!of_state.ok()) return of_state.status();
    ReplayQuestions& questions = *of_state ? run->state_questions : run->evaluation_questions;
    questions.fragments.push_back(fragment);
  }
  const bool reads_state =
      !run->state_questions.probes.empty() || !run->state_questions.fragments.empty();
  if (!reads_state && !evaluates) {
    return absl::InvalidArgumentError(
        "checkpoints: nothing is asked of them; log param(...) or state(...), or evaluate "
        "examples");
  }
  // Any plan can read any checkpoint.
  const v1::Plan& plan = run->recording.attempts().rbegin()->plan();
  absl::StatusOr<std::unique_ptr<ReplayProgram>> made =
      absl::FailedPreconditionError("its inputs are not there");
  if (run->inputs.ok()) {
    made = ReplayProgram::Make(tools_, run->spec, plan, run->state_questions);
  } else {
    totals->estimate.add_notes(absl::StrCat(
        run->inputs.message(),
        "; checkpoints are read without that, and the estimate does not count their answers"));
  }
  if (made.ok()) run->state_program = *std::move(made);
  // Otherwise tensors are read as one worker holds them.
  if (!made.ok() && !absl::IsFailedPrecondition(made.status())) return made.status();
  if (reads_state) {
    if (run->state_program != nullptr) {
      totals->AddNames(run->state_questions.probes, run->state_program->probes(), run->name());
      totals->AddFragments(run->state_questions.fragments,
                           run->state_program->questions().lacking_fragments, run->name());
    }
    const bool lacks_all =
        run->state_program != nullptr && LacksAll(run->state_questions, *run->state_program);
    const absl::StatusOr<int64_t> read =
        lacks_all ? absl::StatusOr<int64_t>(0)
                  : AddSegments(spec, *run, v1::ReplaySegment::STATE, 1, 0,
                                {0, ReadSeconds(*run), kCheckpointSeconds}, totals);
    if (!read.ok()) return read.status();
    if (run->state_program != nullptr) totals->AddRows(*run->state_program, *read);
  }
  NoteLeftOut(*run, reads_state, totals);
  if (!evaluates) return absl::OkStatus();
  absl::StatusOr<v1::TrainingSpec> evaluated = SpecToEvaluate(run->spec, spec);
  if (!evaluated.ok()) return evaluated.status();
  run->evaluated = std::make_shared<const v1::TrainingSpec>(*std::move(evaluated));
  run->evaluation_prefix = EvaluationPrefix(spec);
  made = ReplayProgram::Make(tools_, *run->evaluated, plan, {});
  if (made.ok()) run->evaluation_program = *std::move(made);
  if (!made.ok() && !(absl::IsFailedPrecondition(made.status()) && spec.any_plan())) {
    return made.status();
  }
  std::optional<EvaluationProbes> probes;
  std::set<std::string> reported;
  if (run->evaluation_program != nullptr) {
    reported = ReportedValues(run->evaluation_program->lowered());
    std::erase_if(run->evaluation_questions.probes, [&](const ProbeExpression& probe) {
      const bool erased = IsReported(probe, reported);
      if (erased) totals->known.insert(ToString(probe));
      return erased;
    });
    absl::StatusOr<EvaluationProbes> found = FindEvaluationProbes(
        tools_, *run->evaluation_program, run->evaluation_questions, run->evaluation_prefix);
    if (!found.ok()) return found.status();
    probes = *std::move(found);
    totals->AddNames(run->evaluation_questions.probes, probes->found, run->name());
    totals->AddFragments(run->evaluation_questions.fragments, probes->lacking_fragments,
                         run->name());
    totals->AddDerived(probes->derived, run->name());
    for (const std::string& note : probes->notes) {
      totals->estimate.add_notes(absl::StrCat(run->name(), ": ", note));
    }
  }
  const size_t ranks = spec.any_plan() ? 1 : run->RanksAt(run->logged.end);
  if (absl::Status s = CheckWorkers(spec, *run, ranks); !s.ok()) return s;
  const absl::StatusOr<std::vector<v1::StepReport>> validations = jobs_.Validations(run->job_id);
  if (!validations.ok()) return validations.status();
  double seconds = 0;
  if (probes.has_value()) {
    const bool own = !spec.has_evaluate() || spec.evaluate().uri().empty();
    seconds = SecondsOfEvaluation(*validations, *run, probes->batches.count, own);
  }
  if (seconds <= 0) {
    totals->estimate.add_notes(
        absl::StrCat(run->name(), ": the estimate is without the time that evaluations take",
                     probes.has_value() ? ": none of its steps was timed"
                                        : " and their answers: its plan is for another graph than "
                                          "this version of Espalier makes of its model"));
  }
  const CheckpointCosts costs = {LoadSeconds(*run) - ReadSeconds(*run), ReadSeconds(*run),
                                 kCheckpointSeconds + seconds};
  const absl::StatusOr<int64_t> count = AddSegments(
      spec, *run, v1::ReplaySegment::EVALUATION,
      std::max(1, totals->most_workers / static_cast<int>(ranks)), ranks, costs, totals);
  if (!count.ok() || !probes.has_value()) return count.status();
  totals->AddEvaluations(static_cast<int64_t>(reported.size()), *probes, *count);
  return absl::OkStatus();
}

}  // namespace espalier
