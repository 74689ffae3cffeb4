#include "planner/testing/exhaustive_search.h"

#include <utility>

namespace espalier {

double CountPlacements(const SearchSpace& space) {
  double count = 1;
  for (NodeId n : space.nodes()) count *= static_cast<double>(space.All(n).size());
  return count;
}

absl::Status ForEachPlacement(const PcgStructure& structure, const SearchSpace& space,
                              ConfigTable& table, Simulator* simulator,
                              const std::function<absl::Status()>& visit) {
  const std::vector<NodeId> nodes = structure.LiveNodes();
  std::vector<std::vector<const ConfigEntry*>> choices;
  Placement first(structure.nodes.size(), nullptr);
  for (NodeId n : nodes) {
    choices.emplace_back();
    for (const NodeConfig& config : space.All(n)) choices.back().push_back(table.Get(n, config));
    first[n] = choices.back()[0];
  }
  if (absl::Status status = simulator->Reset(first); !status.ok()) return status;

  // An odometer. The last operator changes most often: its forward and backward pass are adjacent,
  // so little of the step changes.
  std::vector<size_t> at(nodes.size(), 0);
  std::vector<Simulator::Change> changes;
  while (true) {
    if (absl::Status status = visit(); !status.ok()) return status;
    changes.clear();
    size_t i = nodes.size();
    while (i-- > 0) {
      at[i] = at[i] + 1 < choices[i].size() ? at[i] + 1 : 0;
      changes.emplace_back(nodes[i], choices[i][at[i]]);
      if (at[i] > 0) break;
    }
    if (i == static_cast<size_t>(-1)) return absl::OkStatus();
    absl::StatusOr<Picoseconds> cost = simulator->Propose(changes);
    if (!cost.ok()) return cost.status();
    simulator->Accept();
  }
}

absl::StatusOr<ExhaustivePlacement> PlaceExhaustively(const PcgStructure& structure,
                                                      const SearchSpace& space, ConfigTable& table,
                                                      Simulator* simulator) {
  ExhaustivePlacement best;
  absl::Status status = ForEachPlacement(structure, space, table, simulator, [&] {
    if (++best.placements > 1 && simulator->cost() >= best.cost) return absl::OkStatus();
    best.cost = simulator->cost();
    best.placement = simulator->placement();
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return best;
}

}  // namespace espalier
