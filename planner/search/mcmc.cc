#include "planner/search/mcmc.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace espalier {
namespace {

constexpr double kPropagate = 0.25;
constexpr double kAllAlike = 0.25;

using Configs = std::vector<std::pair<NodeId, NodeConfig>>;

Configs DrawMove(const SearchSpace& space, const Placement& placement, Random* random) {
  const NodeId node = space.nodes()[random->Below(static_cast<int64_t>(space.nodes().size()))];
  Configs changes;
  const double kind = random->Real();
  if (kind < kPropagate) {
    // Half of the time the node's own configuration is spread, else a new one.
    if (random->Real() < 0.5) {
      changes.emplace_back(node, placement[node]->config);
    } else {
      changes.emplace_back(node, space.Draw(node, random));
    }
    const NodeConfig config = changes[0].second;
    space.Propagate(node, config, random, &changes);
    return changes;
  }
  const NodeConfig config = space.Draw(node, random);
  if (kind < kPropagate + kAllAlike) {
    for (NodeId alike : space.Alike(node)) changes.emplace_back(alike, config);
  } else {
    changes.emplace_back(node, config);
  }
  return changes;
}

// The cost from which on a proposal is rejected, decided by a number drawn from [0, 1) beforehand,
// so that simulating can stop where it is certain: u < exp(-alpha * worse) where worse is less than
// -ln(u) / alpha.
Picoseconds AcceptBelow(Picoseconds current, double alpha, double u) {
  const double worse_ms = alpha > 0 ? -std::log(u) / alpha : HUGE_VAL;
  if (worse_ms * 1e9 > 1e18) return Simulator::kNoLimit;
  return current + static_cast<Picoseconds>(std::ceil(worse_ms * 1e9));
}

// The changes that lead from one placement to another.
std::vector<Simulator::Change> Difference(const Placement& from, const Placement& to) {
  std::vector<Simulator::Change> changes;
  for (size_t n = 0; n < from.size(); ++n) {
    if (from[n] != to[n]) changes.emplace_back(static_cast<NodeId>(n), to[n]);
  }
  return changes;
}

}  // namespace

absl::StatusOr<McmcResult> RunMcmc(const SearchSpace& space, ConfigTable& table,
                                   Simulator* simulator, const McmcOptions& options) {
  Random random(options.seed);
  McmcResult result;
  result.best = simulator->placement();
  result.cost = simulator->cost();
  const int64_t back_every = std::clamp<int64_t>(options.budget / 100, 1, 1000);
  Picoseconds current = result.cost;
  auto go_back = [&]() -> absl::Status {
    const std::vector<Simulator::Change> changes = Difference(simulator->placement(), result.best);
    if (changes.empty()) return absl::OkStatus();
    absl::StatusOr<Picoseconds> cost = simulator->Propose(changes);
    if (!cost.ok()) return cost.status();
    simulator->Accept();
    current = *cost;
    return absl::OkStatus();
  };

  for (int64_t step = 0; step < options.budget && !space.nodes().empty(); ++step) {
    std::vector<Simulator::Change> changes;
    for (const auto& [node, config] : DrawMove(space, simulator->placement(), &random)) {
      const ConfigEntry* entry = table.Get(node, config);
      if (entry != simulator->placement()[node]) changes.emplace_back(node, entry);
    }
    ++result.proposals;
    if (!changes.empty()) {
      const Picoseconds limit = AcceptBelow(current, options.alpha, random.Real());
      absl::StatusOr<Picoseconds> cost = simulator->Propose(changes, limit);
      if (!cost.ok()) return cost.status();
      if (*cost < limit) {
        simulator->Accept();
        current = *cost;
        ++result.accepted;
        if (current < result.cost) {
          result.cost = current;
          result.best = simulator->placement();
        }
      } else {
        simulator->Reject();
      }
    }
    if ((step + 1) % back_every == 0) {
      if (absl::Status status = go_back(); !status.ok()) return status;
      if (options.progress) {
        options.progress(static_cast<double>(step + 1) / static_cast<double>(options.budget));
      }
    }
  }
  if (absl::Status status = go_back(); !status.ok()) return status;
  return result;
}

}  // namespace espalier
