// Searches placements of all operators of one problem at one ZeRO stage, within the memory limit.
//
// If memory is sufficient, the search's placement is the plan. Otherwise the search minimizes an
// estimate that includes the time of swaps and recomputation (Simulator::EnableOffloadPenalty) and
// ranks many placements. The best of these, and those of a second search that stays within the
// limit, are lowered and given offload; the fastest by prediction wins. Batch tiling is not part of
// the estimate: it only makes lowered programs fit.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "planner/plan/planning.h"

namespace espalier {

struct SearchedPlans {
  Candidate best;                 // refused if nothing fits
  std::vector<Candidate> others;  // alternatives to report: they fit and are slower
  bool memory_is_short = false;   // memory limited the choice
};

// Searches from `starts`, at least one. Nodes with devices in `pinned` (by node; may be empty) keep
// that configuration. Counts proposals in `summary`.
absl::StatusOr<SearchedPlans> SearchOperators(const PlanProblem& problem,
                                              const v1::SearchOptions& options,
                                              std::vector<Placement> starts,
                                              const std::vector<NodeConfig>& pinned,
                                              Planning& planning, v1::SearchSummary* summary);

}  // namespace espalier
