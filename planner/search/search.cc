#include "planner/search/search.h"

#include <algorithm>
#include <utility>

#include "planner/search/branch_placement.h"
#include "planner/search/elimination.h"
#include "planner/search/local_search.h"

namespace espalier {
namespace {

constexpr int kChains = 4;

}  // namespace

int64_t DefaultBudget(const SearchSpace& space) {
  const int64_t nodes = static_cast<int64_t>(space.nodes().size());
  return std::clamp<int64_t>(100 * nodes * space.num_devices(), 10'000, 40'000);
}

int64_t LocalSearchBudget(int64_t budget) { return budget * 2 / 5; }

absl::StatusOr<McmcResult> FindPlacement(const SearchSpace& space, ConfigTable& table,
                                         CostTables& costs, std::vector<Placement> starts,
                                         const McmcOptions& options, Simulator* simulator) {
  if (!options.alpha.has_value() && options.budget > 0) {
    absl::StatusOr<Placement> start =
        EliminationPlacement(space, table, costs, starts[0], options.stop);
    if (!start.ok()) return start.status();
    if (absl::Status status = simulator->Reset(*start); !status.ok()) return status;
    // Concurrent branches would leave the devices on which nodes are pinned.
    const bool stopped = options.stop && options.stop();
    absl::Status split = space.has_pins() || stopped
                             ? absl::OkStatus()
                             : SplitBranches(space, table, costs, starts[0], simulator);
    if (!split.ok()) return split;
    if (simulator->placement() != *start) starts.push_back(simulator->placement());
    starts.push_back(*std::move(start));
  }
  // Fastest first.
  std::vector<std::pair<Picoseconds, const Placement*>> order;
  for (const Placement& start : starts) {
    if (absl::Status status = simulator->Reset(start); !status.ok()) return status;
    order.emplace_back(simulator->cost(), &start);
    if (options.top_placements != nullptr) {
      options.top_placements->Offer(simulator->cost(), simulator->time(), start);
    }
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });

  Moves moves(space, table);
  McmcResult best;
  best.cost = order[0].first;
  best.best = *order[0].second;
  const int chains = options.alpha.has_value() ? 1 : kChains;
  const int64_t budget = options.budget / chains;
  for (int chain = 0; chain < chains && options.budget > 0; ++chain) {
    // The starts first, then from the best so far.
    const bool fresh = chain < static_cast<int>(order.size());
    absl::Status status = simulator->Reset(fresh ? *order[chain].second : best.best);
    if (!status.ok()) return status;
    McmcOptions mcmc = options;
    mcmc.budget = budget - LocalSearchBudget(budget);
    mcmc.seed = options.seed * kChains + chain;
    if (options.progress) {
      mcmc.progress = [&, chain](double fraction) {
        options.progress((chain + fraction) / static_cast<double>(chains));
      };
    }
    absl::StatusOr<McmcResult> found = RunMcmc(moves, simulator, mcmc);
    if (!found.ok()) return found.status();
    best.proposals += found->proposals;
    best.accepted += found->accepted;
    const bool stop = options.stop && options.stop();
    absl::StatusOr<LocalSearchResult> descent = RunLocalSearch(
        moves, simulator, stop ? 0 : LocalSearchBudget(budget), options.top_placements);
    if (!descent.ok()) return descent.status();
    best.proposals += descent->proposals;
    best.accepted += descent->accepted;
    if (simulator->cost() < best.cost) {
      best.cost = simulator->cost();
      best.best = simulator->placement();
    }
    if (stop) break;
  }
  if (absl::Status status = simulator->Reset(best.best); !status.ok()) return status;
  return best;
}

}  // namespace espalier
