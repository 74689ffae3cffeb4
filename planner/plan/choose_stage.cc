// MakePlan: see planner.h. Where nobody names a ZeRO stage, replicas keep everything as long as
// that fits: every further stage moves more bytes, or moves them earlier.
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/pcg/structure.h"
#include "planner/plan/at_stage.h"

namespace espalier {
namespace {

constexpr int kLastStage = 3;

// Without anything being swapped or computed again.
bool FitsAsItIs(const absl::StatusOr<proto::Plan>& plan) {
  return plan.ok() && plan->memory_plans().empty();
}

bool Faster(const absl::StatusOr<proto::Plan>& a, const absl::StatusOr<proto::Plan>& b) {
  if (!a.ok() || !b.ok()) return a.ok() && !b.ok();
  return a->prediction().step_seconds() < b->prediction().step_seconds();
}

// The lowest stage that fits, or what makes a lower one fit, if that is faster.
absl::StatusOr<proto::Plan> LowestStage(const PlanProblem& problem,
                                        const proto::SearchOptions& options) {
  const double begin = problem.seconds ? problem.seconds() : 0;
  absl::StatusOr<proto::Plan> best = MakePlanAtStage(problem, options, 0);
  const bool memory_is_short =
      best.ok() ? !FitsAsItIs(best) : absl::IsResourceExhausted(best.status());
  if (!memory_is_short || problem.machine.devices.size() == 1 || options.max_devices() == 1 ||
      options.strategy() == proto::SearchOptions::SINGLE_DEVICE) {
    return best;
  }
  PlanProblem again = problem;
  again.progress = nullptr;  // it would begin anew
  for (int stage = 1; stage <= kLastStage; ++stage) {
    absl::StatusOr<proto::Plan> plan = MakePlanAtStage(again, options, stage);
    if (!plan.ok() && !absl::IsResourceExhausted(plan.status())) return plan;
    const bool fits = FitsAsItIs(plan);
    if (Faster(plan, best)) best = std::move(plan);
    if (fits) break;
  }
  if (best.ok()) {
    if (problem.progress) problem.progress(1.0);
    if (problem.seconds) best->mutable_search()->set_seconds(problem.seconds() - begin);
    return best;
  }
  return absl::ResourceExhaustedError(absl::StrCat(best.status().message(), "; ZeRO, up to stage ",
                                                   kLastStage, ", does not make it fit"));
}

}  // namespace

absl::StatusOr<proto::Plan> MakePlan(const PlanProblem& problem,
                                     const proto::SearchOptions& options) {
  if (options.has_zero_stage()) {
    absl::Status status = CheckZeroStage(options.zero_stage(), "search.zero_stage");
    if (!status.ok()) return status;
    return MakePlanAtStage(problem, options, options.zero_stage());
  }
  if (options.strategy() != proto::SearchOptions::IMPORTED) return LowestStage(problem, options);
  const int stage = options.imported().zero_stage();
  if (absl::Status status = CheckZeroStage(stage, "plan: field 'zero_stage'"); !status.ok()) {
    return status;
  }
  return MakePlanAtStage(problem, options, stage);
}

}  // namespace espalier
