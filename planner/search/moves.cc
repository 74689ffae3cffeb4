#include "planner/search/moves.h"

#include <algorithm>

namespace espalier {
namespace {

constexpr double kPropagate = 0.25;
constexpr double kAllAlike = 0.25;
constexpr double kTogether = 0.15;
constexpr double kContinue = 0.75;
constexpr int64_t kMostTogether = 6;

bool Changed(const Moves::Changes& changes, NodeId node) {
  return std::any_of(changes.begin(), changes.end(),
                     [node](const Simulator::Change& change) { return change.first == node; });
}

}  // namespace

Moves::Moves(const SearchSpace& space, ConfigTable& table)
    : space_(space), table_(table), drawn_(space.num_nodes()), all_(space.num_nodes()) {}

const ConfigEntry* Moves::Entry(NodeId node, const SearchSpace::Choice& choice) {
  const uint64_t n = static_cast<uint64_t>(space_.num_devices()) + 1;
  const ConfigEntry*& entry =
      drawn_[node][(static_cast<uint64_t>(choice.degrees) * n + choice.stride) * n + choice.start];
  if (entry == nullptr) entry = table_.Get(node, space_.ConfigOf(node, choice));
  return entry;
}

const std::vector<const ConfigEntry*>& Moves::All(NodeId node) {
  std::vector<const ConfigEntry*>& all = all_[node];
  if (all.empty()) {
    for (const NodeConfig& config : space_.All(node)) all.push_back(table_.Get(node, config));
  }
  return all;
}

const ConfigEntry* Moves::Follow(NodeId node, const ConfigEntry* entry,
                                 const SearchSpace::Edge& edge) {
  const auto [it, inserted] = followers_.try_emplace({entry, &edge}, nullptr);
  if (inserted) {
    NodeConfig config;
    if (space_.Follow(node, entry->config, edge, &config)) {
      it->second = table_.Get(edge.neighbor, config);
    }
  }
  return it->second;
}

void Moves::Propagate(Random* random, Changes* changes) {
  do {
    const auto [node, entry] = changes->back();
    const SearchSpace::Edge* edge = space_.DrawEdge(node, random);
    if (edge == nullptr || Changed(*changes, edge->neighbor)) return;
    const ConfigEntry* next = Follow(node, entry, *edge);
    if (next == nullptr) return;
    changes->emplace_back(edge->neighbor, next);
  } while (random->Real() < kContinue);
}

void Moves::Gather(size_t index, const SearchSpace::Choice& choice, Random* random,
                   Changes* changes) {
  const std::vector<NodeId>& nodes = space_.nodes();
  const int parts = space_.Parts(nodes[index], choice);
  const size_t end = std::min(nodes.size(), index + 2 + random->Below(kMostTogether - 1));
  for (size_t i = index + 1; i < end; ++i) {
    SearchSpace::Choice other = choice;
    // Usually the first draw works; if none does, the node stays unchanged.
    for (int tries = 0; tries < 8; ++tries) {
      other.degrees = space_.DrawChoice(nodes[i], random).degrees;
      if (space_.Parts(nodes[i], other) != parts) continue;
      changes->emplace_back(nodes[i], Entry(nodes[i], other));
      break;
    }
  }
}

void Moves::Draw(const Placement& placement, Random* random, Changes* changes) {
  changes->clear();
  const std::vector<NodeId>& nodes = space_.nodes();
  const size_t index = random->Below(static_cast<int64_t>(nodes.size()));
  const NodeId node = nodes[index];
  const double kind = random->Real();
  if (kind < kPropagate) {
    // Half of the time propagates the node's own configuration, otherwise a new one.
    const bool own = random->Real() < 0.5;
    changes->emplace_back(node,
                          own ? placement[node] : Entry(node, space_.DrawChoice(node, random)));
    Propagate(random, changes);
  } else {
    const SearchSpace::Choice choice = space_.DrawChoice(node, random);
    if (kind < kPropagate + kAllAlike) {
      for (NodeId alike : space_.EqualNodes(node))
        changes->emplace_back(alike, Entry(alike, choice));
    } else {
      changes->emplace_back(node, Entry(node, choice));
      if (kind < kPropagate + kAllAlike + kTogether) Gather(index, choice, random, changes);
    }
  }
  changes->erase(std::remove_if(changes->begin(), changes->end(),
                                [&placement](const Simulator::Change& change) {
                                  return placement[change.first] == change.second;
                                }),
                 changes->end());
}

}  // namespace espalier
