// The search over all operators of one problem at one ZeRO stage, with what memory costs a plan.
//
// Where memory is ample, the search's placement is the plan. Where it is short, the search goes by
// an estimate of what swaps and recomputation would add (Simulator::EnableOffloadPenalty), and so ranks many
// placements; the first of them, and those of a search that keeps within the limit, are lowered and
// made to fit, and the one that is then predicted to be fastest is taken. Slices of the batch are
// no part of the estimate: they only make fit what is lowered.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "planner/plan/planning.h"

namespace espalier {

struct SearchedPlans {
  Candidate best;                 // refused if nothing fits
  std::vector<Candidate> others;  // to be shown beside it: that fit and are slower
  bool memory_is_short = false;   // memory had a say in it
};

// Searches from `starts`, at least one. Nodes that have devices in `pinned`, by node, stay as they
// are there; empty: none. Counts what it tries in `summary`.
absl::StatusOr<SearchedPlans> SearchOperators(const PlanProblem& problem,
                                              const v1::SearchOptions& options,
                                              std::vector<Placement> starts,
                                              const std::vector<NodeConfig>& pinned,
                                              Planning& planning, v1::SearchSummary* summary);

}  // namespace espalier
