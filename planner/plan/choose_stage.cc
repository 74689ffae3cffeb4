// MakePlanOfGraph: see at_stage.h. Where nobody names a ZeRO stage, replicas keep everything as
// long as that fits: further stages have more collectives, one for each parameter instead of one
// for many.
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/parallel.h"
#include "planner/pcg/structure.h"
#include "planner/plan/at_stage.h"

namespace espalier {
namespace {

constexpr int kLastStage = 3;

bool Faster(const absl::StatusOr<proto::Plan>& a, const absl::StatusOr<proto::Plan>& b) {
  if (!a.ok() || !b.ok()) return a.ok() && !b.ok();
  return a->prediction().step_seconds() < b->prediction().step_seconds();
}

// The lowest of the stages above 0 that fits as it is; if there is none, the fastest that can be
// made to.
absl::StatusOr<proto::Plan> HigherStage(const PlanProblem& problem,
                                        const proto::SearchOptions& options) {
  // Making a program fit takes far longer than finding out that it does not: left out at first.
  proto::SearchOptions as_it_is = options;
  as_it_is.mutable_memory()->set_disable_swap(true);
  as_it_is.mutable_memory()->set_disable_recompute(true);
  as_it_is.mutable_memory()->set_max_batch_slices(1);
  for (int stage = 1; stage <= kLastStage; ++stage) {
    absl::StatusOr<proto::Plan> plan = MakePlanAtStage(problem, as_it_is, stage);
    if (plan.ok()) *plan->mutable_memory() = options.memory();
    if (plan.ok() || !absl::IsResourceExhausted(plan.status())) return plan;
  }
  absl::StatusOr<proto::Plan> best = absl::ResourceExhaustedError("");
  std::vector<absl::StatusOr<proto::Plan>> plans(kLastStage, absl::ResourceExhaustedError(""));
  ForEachApart(problem, kLastStage, [&](int i, const OwnProblem& own) {
    plans[i] = MakePlanAtStage(*own, options, i + 1);
  });
  for (absl::StatusOr<proto::Plan>& plan : plans) {
    if (!plan.ok() && !absl::IsResourceExhausted(plan.status())) return plan;
    if (Faster(plan, best)) best = std::move(plan);
  }
  return best;
}

absl::StatusOr<proto::Plan> AnyStage(const PlanProblem& problem,
                                     const proto::SearchOptions& options) {
  const double begin = problem.seconds ? problem.seconds() : 0;
  absl::StatusOr<proto::Plan> best = MakePlanAtStage(problem, options, 0);
  const bool memory_is_short =
      best.ok() ? !best->memory_plans().empty() : absl::IsResourceExhausted(best.status());
  if (!memory_is_short || problem.machine.devices.size() == 1 || options.max_devices() == 1 ||
      options.strategy() == proto::SearchOptions::SINGLE_DEVICE) {
    return best;
  }
  PlanProblem again = problem;
  again.progress = nullptr;  // it would begin anew
  absl::StatusOr<proto::Plan> higher = HigherStage(again, options);
  if (!higher.ok() && !absl::IsResourceExhausted(higher.status())) return higher;
  if (Faster(higher, best)) best = std::move(higher);
  if (!best.ok()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        best.status().message(), "; ZeRO, up to stage ", kLastStage, ", does not make it fit"));
  }
  if (problem.progress) problem.progress(1.0);
  if (problem.seconds) best->mutable_search()->set_seconds(problem.seconds() - begin);
  return best;
}

}  // namespace

absl::StatusOr<proto::Plan> MakePlanOfGraph(const PlanProblem& problem,
                                            const proto::SearchOptions& options) {
  if (options.has_zero_stage()) {
    absl::Status status = CheckZeroStage(options.zero_stage(), "search.zero_stage");
    if (!status.ok()) return status;
    return MakePlanAtStage(problem, options, options.zero_stage());
  }
  // A search goes on from the stage of the plan that it starts from.
  const bool search = options.strategy() == proto::SearchOptions::SEARCH;
  if (options.strategy() != proto::SearchOptions::IMPORTED && !(search && options.has_imported())) {
    return AnyStage(problem, options);
  }
  const int stage = options.imported().zero_stage();
  if (absl::Status status = CheckZeroStage(stage, "plan: field 'zero_stage'"); !status.ok()) {
    return status;
  }
  return MakePlanAtStage(problem, options, stage);
}

}  // namespace espalier
