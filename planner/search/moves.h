// Proposals from one placement to another. Caches configuration table entries, because a search
// draws the same configurations again and again.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "planner/pcg/placement.h"
#include "planner/search/search_space.h"
#include "planner/simulator/simulator.h"

namespace espalier {

class Moves {
 public:
  using Changes = std::vector<Simulator::Change>;

  // Both must outlive this.
  Moves(const SearchSpace& space, ConfigTable& table);

  // Proposes a new configuration for one node, for all equal nodes (repeated layers) or propagated
  // along edges, or other devices for a few consecutive nodes. Omits changes without effect; may
  // return none.
  void Draw(const Placement& placement, Random* random, Changes* changes);

  // Propagates the initial `changes` along edges, chosen by tensor size, to neighbors that can hold
  // the shared tensor in the same layout. Continues from each with probability 0.75.
  void Propagate(Random* random, Changes* changes);

  // Every configuration of `node`.
  const std::vector<const ConfigEntry*>& All(NodeId node);
  // See SearchSpace::Follow; `edge` is one of EdgesOf(node). Null if there is none.
  const ConfigEntry* Follow(NodeId node, const ConfigEntry* entry, const SearchSpace::Edge& edge);

  const SearchSpace& space() const { return space_; }

 private:
  const ConfigEntry* Entry(NodeId node, const SearchSpace::Choice& choice);

  // Draws random degrees on the devices of `choice`, of nodes()[index], for some nodes after it.
  void Gather(size_t index, const SearchSpace::Choice& choice, Random* random, Changes* changes);

  const SearchSpace& space_;
  ConfigTable& table_;
  std::vector<absl::flat_hash_map<uint64_t, const ConfigEntry*>> drawn_;  // by node
  std::vector<std::vector<const ConfigEntry*>> all_;  // by node; empty until asked for
  absl::flat_hash_map<std::pair<const ConfigEntry*, const SearchSpace::Edge*>, const ConfigEntry*>
      followers_;
};

}  // namespace espalier
