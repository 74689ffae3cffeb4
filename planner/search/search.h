// The search for a placement: dynamic programming, several MCMC chains from several starting
// points, each followed by a local search.
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

// The budget of a search whose options name none.
int64_t DefaultBudget(const SearchSpace& space);

// The part of a budget that the local search gets.
int64_t LocalSearchBudget(int64_t budget);

// Searches from `starts` (at least one) and from the placements of dynamic programming, serial and
// with concurrent branches. `options` as for RunMcmc, with one budget for all chains: with alpha
// one chain of FlexFlow's from the best of `starts`, without it several annealed ones. `simulator`
// may hold any placement and is left at the result.
absl::StatusOr<McmcResult> FindPlacement(const SearchSpace& space, ConfigTable& table,
                                         CostTables& costs, std::vector<Placement> starts,
                                         const McmcOptions& options, Simulator* simulator);

}  // namespace espalier
