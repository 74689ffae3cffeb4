// CollectiveModel::Create: the shares that each step's flows get of the links.
#include <algorithm>
#include <limits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "planner/machine/collective_steps.h"
#include "planner/machine/collectives.h"

namespace espalier {
namespace {

using Collective = v1::CollectiveInstruction;

// `seen`: ranks of earlier groups.
absl::Status CheckGroup(const Topology& topology, const CollectiveGroup& group,
                        std::unordered_set<int>* seen) {
  if (group.kind < Collective::ALL_REDUCE || group.kind > Collective::BROADCAST) {
    return absl::InvalidArgumentError(
        absl::StrCat("collective: kind is ", static_cast<int>(group.kind),
                     "; accepted: ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST"));
  }
  const std::vector<int>& ranks = group.ranks;
  if (ranks.empty()) {
    return absl::InvalidArgumentError("collective: no ranks; there must be 1 or more");
  }
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= topology.num_devices()) {
      return absl::InvalidArgumentError(absl::StrCat("collective: ranks[", i, "] is ", ranks[i],
                                                     "; devices are 0 to ",
                                                     topology.num_devices() - 1));
    }
    if (!seen->insert(ranks[i]).second) {
      return absl::InvalidArgumentError(absl::StrCat("collective: ranks[", i, "] is ", ranks[i],
                                                     ", which is there already; each device may "
                                                     "be there once"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

// Writes the phases of the models of concurrent collectives.
class CollectiveBuilder {
 public:
  CollectiveBuilder(const Topology& topology, const std::vector<CollectiveGroup>& groups)
      : topology_(topology), load_(topology.num_edges(), 0) {
    for (const CollectiveGroup& group : groups) {
      steps_.push_back(FindCollectiveSteps(topology, group.kind, group.ranks));
      CollectiveModel& model = models_.emplace_back(CollectiveModel());
      model.num_ranks_ = static_cast<int>(group.ranks.size());
      for (int a = 0; a < kNumCollectiveAlgorithms; ++a)
        model.has_[a] = steps_.back()[a].has_value();
    }
  }

  std::vector<CollectiveModel> Build() {
    for (int a = 0; a < kNumCollectiveAlgorithms; ++a) {
      size_t most = 0;
      for (const CollectiveSteps& steps : steps_) {
        if (steps[a].has_value()) most = std::max(most, steps[a]->size());
      }
      for (size_t i = 0; i < most; ++i) AddStep(a, i);
    }
    return std::move(models_);
  }

 private:
  using Line = CollectiveModel::Line;
  using Phase = CollectiveModel::Phase;

  // Returns a group's step while the other groups are in step `i`; null: none.
  static const CollectiveStep* StepOf(const CollectiveSteps& steps, int algorithm, size_t i) {
    if (steps[algorithm].has_value()) {
      return i < steps[algorithm]->size() ? &(*steps[algorithm])[i] : nullptr;
    }
    const std::vector<CollectiveStep>& ring = *steps[0];
    return ring.empty() ? nullptr : &ring[std::min(i, ring.size() - 1)];
  }

  void AddStep(int algorithm, size_t i) {
    for (const CollectiveSteps& steps : steps_) {
      if (const CollectiveStep* step = StepOf(steps, algorithm, i)) Load(*step);
    }
    for (size_t g = 0; g < steps_.size(); ++g) {
      const auto& own = steps_[g][algorithm];
      if (own.has_value() && i < own->size()) AddPhase((*own)[i], algorithm, &models_[g]);
    }
    for (int edge : loaded_) load_[edge] = 0;
    loaded_.clear();
  }

  void Load(const CollectiveStep& step) {
    const auto add = [this](int edge, double flows) {
      if (load_[edge] == 0) loaded_.push_back(edge);
      load_[edge] += flows;
    };
    for (const auto& [from, to] : step.flows) {
      topology_.VisitPath(from, to, [&](int edge) { add(edge, 1); });
    }
    for (const CollectiveStep::Edge& e : step.edges) add(e.edge, e.flows);
  }

  // One flow's load on an edge: `part`, if it crosses the edge only part of the time.
  double ShareOf(int edge, double part) const {
    return std::min(topology_.EdgeBandwidth(edge) / load_[edge],
                    topology_.EdgeFlowBandwidth(edge) / part);
  }

  void AddPhase(const CollectiveStep& step, int algorithm, CollectiveModel* model) const {
    std::vector<Line>& lines = model->lines_;
    std::vector<Phase>& phases = model->phases_[algorithm];
    const size_t first = lines.size();
    for (const auto& [from, to] : step.flows) {
      Line line{topology_.Latency(from, to), std::numeric_limits<double>::infinity()};
      topology_.VisitPath(
          from, to, [&](int edge) { line.bandwidth = std::min(line.bandwidth, ShareOf(edge, 1)); });
      AddLine(line, first, &lines);
    }
    if (!step.edges.empty()) {
      Line line{step.latency, std::numeric_limits<double>::infinity()};
      for (const CollectiveStep::Edge& e : step.edges) {
        line.bandwidth = std::min(line.bandwidth, ShareOf(e.edge, e.of_rank));
      }
      lines.push_back(line);
    }
    // The hops of a chain are often equal: one phase covers them.
    if (step.flows.size() == 1) {
      for (Phase& old : phases) {
        if (old.divisor != step.divisor || old.end_line != old.first_line + 1) continue;
        if (lines[old.first_line] != lines[first]) continue;
        old.rounds += step.rounds;
        lines.resize(first);
        return;
      }
    }
    phases.push_back(
        {step.rounds, step.divisor, static_cast<int>(first), static_cast<int>(lines.size())});
  }

  // Removes lines that are no slower than another line at any size.
  static void AddLine(const Line& line, size_t first, std::vector<Line>* lines) {
    const auto covers = [](const Line& a, const Line& b) {
      return a.latency >= b.latency && a.bandwidth <= b.bandwidth;
    };
    for (size_t i = first; i < lines->size(); ++i) {
      if (covers((*lines)[i], line)) return;
    }
    lines->erase(std::remove_if(lines->begin() + static_cast<std::ptrdiff_t>(first), lines->end(),
                                [&](const Line& old) { return covers(line, old); }),
                 lines->end());
    lines->push_back(line);
  }

  const Topology& topology_;
  std::vector<CollectiveSteps> steps_;  // by group
  std::vector<CollectiveModel> models_;
  std::vector<double> load_;  // flows by edge; zero between steps
  std::vector<int> loaded_;
};

absl::StatusOr<CollectiveModel> CollectiveModel::Create(const Topology& topology, Kind kind,
                                                        const std::vector<int>& ranks) {
  absl::StatusOr<std::vector<CollectiveModel>> made = CreateConcurrent(topology, {{kind, ranks}});
  if (!made.ok()) return made.status();
  return std::move(made->front());
}

absl::StatusOr<std::vector<CollectiveModel>> CollectiveModel::CreateConcurrent(
    const Topology& topology, const std::vector<CollectiveGroup>& groups) {
  std::unordered_set<int> seen;
  for (const CollectiveGroup& group : groups) {
    if (absl::Status s = CheckGroup(topology, group, &seen); !s.ok()) return s;
  }
  return CollectiveBuilder(topology, groups).Build();
}

}  // namespace espalier
