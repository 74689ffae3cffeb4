// The search for a placement: dynamic programming, several chains from several starting points,
// each followed by the way down to where no small change helps.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/search/mcmc.h"
#include "planner/search/search_space.h"
#include "planner/simulator/simulator.h"

namespace espalier {

// The budget of a search that names none.
int64_t DefaultBudget(const SearchSpace& space);

// The part of a budget that is for the way down.
int64_t LocalSearchBudget(int64_t budget);

// Searches from `starts`, at least one, and from where dynamic programming leads, one
// operator after the other and with branches side by side. `options` as for
// RunMcmc, the budget for all together: with alpha one chain of FlexFlow's from the best of
// `starts`, without it several that are annealed. `simulator` may hold anything; it is left at the
// result.
absl::StatusOr<McmcResult> FindPlacement(const SearchSpace& space, ConfigTable& table,
                                         CostTables& costs, std::vector<Placement> starts,
                                         const McmcOptions& options, Simulator* simulator);

}  // namespace espalier
