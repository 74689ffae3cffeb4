// MakePlanOfGraph (at_zero_stage.h). If the options name no ZeRO stage and memory is sufficient,
// replicas keep all states (stage 0). Otherwise plans every stage, with swaps and recomputation,
// and takes the fastest.
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/parallel.h"
#include "planner/pcg/structure.h"
#include "planner/plan/at_zero_stage.h"

namespace espalier {
namespace {

constexpr int kLastStage = 3;

bool Faster(const absl::StatusOr<v1::Plan>& a, const absl::StatusOr<v1::Plan>& b) {
  if (!a.ok() || !b.ok()) return a.ok() && !b.ok();
  return a->prediction().step_seconds() < b->prediction().step_seconds();
}

// Plans of stages 1 and up.
std::vector<absl::StatusOr<v1::Plan>> HigherStages(const PlanProblem& problem,
                                                   const v1::SearchOptions& options) {
  std::vector<absl::StatusOr<v1::Plan>> plans(kLastStage, absl::ResourceExhaustedError(""));
  ForEachApart(problem, kLastStage, [&](int i, const OwnProblem& own) {
    plans[i] = MakePlanAtZeroStage(*own, options, i + 1);
  });
  return plans;
}

// Adds the runner-up of each stage to the alternatives.
void ShowOtherStages(const std::vector<absl::StatusOr<v1::Plan>>& plans, size_t best,
                     v1::Plan* plan) {
  for (size_t i = 0; i < plans.size(); ++i) {
    if (i == best || !plans[i].ok()) continue;
    v1::Alternative* alternative = plan->add_alternatives();
    alternative->set_name(i == 0 ? "without ZeRO" : absl::StrCat("ZeRO stage ", i));
    *alternative->mutable_prediction() = plans[i]->prediction();
  }
}

absl::StatusOr<v1::Plan> AnyStage(const PlanProblem& problem, const v1::SearchOptions& options) {
  const double begin = problem.seconds ? problem.seconds() : 0;
  bool memory_is_short = false;
  std::vector<absl::StatusOr<v1::Plan>> plans;
  plans.push_back(MakePlanAtZeroStage(problem, options, 0, &memory_is_short));
  if (!plans[0].ok() && !absl::IsResourceExhausted(plans[0].status())) return plans[0];
  // What was found by then.
  if (plans[0].ok() && problem.stop && problem.stop()) return plans[0];
  if (!memory_is_short || problem.machine.devices.size() == 1 || options.max_devices() == 1 ||
      options.strategy() == v1::SearchOptions::SINGLE_DEVICE) {
    return plans[0];
  }
  PlanProblem again = problem;
  again.progress = nullptr;  // progress would start over
  for (absl::StatusOr<v1::Plan>& plan : HigherStages(again, options)) {
    // Stage 0 has validated the request, so the error concerns this stage's plan.
    if (!plan.ok() && !absl::IsResourceExhausted(plan.status()) &&
        !absl::IsInvalidArgument(plan.status())) {
      return plan;
    }
    plans.push_back(std::move(plan));
  }
  size_t best = 0;
  for (size_t i = 1; i < plans.size(); ++i) {
    if (Faster(plans[i], plans[best])) best = i;
  }
  if (!plans[best].ok()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        plans[0].status().message(), "; ZeRO, up to stage ", kLastStage, ", does not make it fit"));
  }
  v1::Plan plan = *plans[best];
  ShowOtherStages(plans, best, &plan);
  if (problem.progress) problem.progress(1.0);
  if (problem.seconds) plan.mutable_search()->set_seconds(problem.seconds() - begin);
  return plan;
}

}  // namespace

absl::StatusOr<v1::Plan> MakePlanOfGraph(const PlanProblem& problem,
                                         const v1::SearchOptions& options) {
  if (options.has_zero_stage()) {
    absl::Status status = CheckZeroStage(options.zero_stage(), "search.zero_stage");
    if (!status.ok()) return status;
    return MakePlanAtZeroStage(problem, options, options.zero_stage());
  }
  // A search that starts from a plan keeps the plan's stage.
  const bool search = options.strategy() == v1::SearchOptions::SEARCH;
  if (options.strategy() != v1::SearchOptions::IMPORTED && !(search && options.has_imported())) {
    return AnyStage(problem, options);
  }
  const int stage = options.imported().zero_stage();
  if (absl::Status status = CheckZeroStage(stage, "plan: field 'zero_stage'"); !status.ok()) {
    return status;
  }
  return MakePlanAtZeroStage(problem, options, stage);
}

}  // namespace espalier
