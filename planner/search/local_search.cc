#include "planner/search/local_search.h"

#include <utility>

namespace espalier {
namespace {

using Edge = SearchSpace::Edge;

class LocalSearch {
 public:
  LocalSearch(Moves& moves, Simulator* simulator, int64_t budget, TopPlacements* top_placements)
      : moves_(moves), simulator_(*simulator), budget_(budget), top_placements_(top_placements) {}

  absl::StatusOr<LocalSearchResult> Run() {
    using Neighborhood = void (LocalSearch::*)(NodeId);
    constexpr Neighborhood kAll[] = {&LocalSearch::Alone, &LocalSearch::EqualNodes,
                                     &LocalSearch::WithFollowers, &LocalSearch::WithEachNeighbour};
    size_t widest = 0;
    while (widest < std::size(kAll)) {
      const Neighborhood neighbourhood = kAll[widest];
      // Visits the nodes in turn until none has improved since its last visit.
      const std::vector<NodeId>& nodes = moves_.space().nodes();
      const int64_t before = result_.accepted;
      size_t unimproved = 0;
      for (size_t i = 0; unimproved < nodes.size(); i = (i + 1) % nodes.size()) {
        const int64_t accepted = result_.accepted;
        (this->*neighbourhood)(nodes[i]);
        if (!status_.ok()) return status_;
        if (Spent()) return result_;
        unimproved = result_.accepted > accepted ? 0 : unimproved + 1;
        if (widest > 0 && unimproved == 0) break;
      }
      widest = widest > 0 && result_.accepted > before ? 0 : widest + 1;
    }
    result_.finished = true;
    return result_;
  }

 private:
  bool Spent() const { return result_.proposals >= budget_; }
  const ConfigEntry* Now(NodeId node) const { return simulator_.placement()[node]; }

  void Alone(NodeId node) {
    for (const ConfigEntry* entry : moves_.All(node)) Try({{node, entry}});
  }

  void EqualNodes(NodeId node) {
    const std::vector<NodeId>& alike = moves_.space().EqualNodes(node);
    if (alike.size() < 2 || node != alike[0]) return;
    for (size_t i = 0; i < moves_.All(node).size(); ++i) {
      Moves::Changes changes;
      for (NodeId other : alike) changes.emplace_back(other, moves_.All(other)[i]);
      Try(std::move(changes));
    }
  }

  void WithFollowers(NodeId node) {
    for (const ConfigEntry* entry : moves_.All(node)) {
      Moves::Changes all = {{node, entry}};
      for (const Edge& edge : moves_.space().EdgesOf(node)) {
        const ConfigEntry* follower = moves_.Follow(node, entry, edge);
        if (follower == nullptr || follower == Now(edge.neighbor)) continue;
        bool first = true;
        for (const auto& [other, ignored] : all) first = first && other != edge.neighbor;
        if (first) all.emplace_back(edge.neighbor, follower);
        Try({{node, entry}, {edge.neighbor, follower}});
      }
      if (all.size() > 2) Try(std::move(all));
    }
  }

  void WithEachNeighbour(NodeId node) {
    for (const Edge& edge : moves_.space().EdgesOf(node)) {
      if (!edge.to_consumer) continue;
      for (const ConfigEntry* entry : moves_.All(node)) {
        for (const ConfigEntry* other : moves_.All(edge.neighbor)) {
          Try({{node, entry}, {edge.neighbor, other}});
        }
      }
    }
  }

  void Try(Moves::Changes changes) {
    if (!status_.ok() || Spent()) return;
    std::erase_if(changes, [this](const auto& c) { return Now(c.first) == c.second; });
    if (changes.empty()) return;
    ++result_.proposals;
    const Picoseconds current = simulator_.cost();
    absl::StatusOr<Picoseconds> cost = simulator_.Propose(changes, current);
    if (!cost.ok()) {
      status_ = cost.status();
    } else if (*cost < current) {
      simulator_.Accept();
      ++result_.accepted;
      if (top_placements_ != nullptr) {
        top_placements_->Offer(*cost, simulator_.time(), simulator_.placement());
      }
    } else {
      simulator_.Reject();
    }
  }

  Moves& moves_;
  Simulator& simulator_;
  const int64_t budget_;
  TopPlacements* const top_placements_;
  LocalSearchResult result_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<LocalSearchResult> RunLocalSearch(Moves& moves, Simulator* simulator, int64_t budget,
                                                 TopPlacements* top_placements) {
  return LocalSearch(moves, simulator, budget, top_placements).Run();
}

}  // namespace espalier
