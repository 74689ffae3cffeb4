#include "planner/search/elimination.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "planner/pcg/gradient_buckets.h"
#include "planner/search/pareto_front.h"
#include "planner/search/variable_elimination.h"

namespace espalier {
namespace {

// Sums reshard plans between two layouts by pair of devices.
constexpr double kMostPieces = 2e7;
// On more than kFewDevices devices, where the search also tries fewer configurations.
constexpr int kManyPiecesDevices = 8;
constexpr double kFewerPieces = 2e6;
constexpr int kParetoConfigs = 16;  // per operator

// The cost sum of one graph.
class SerialSteps {
 public:
  SerialSteps(const SearchSpace& space, ConfigTable& table, CostTables& costs,
              const Placement& other, const SegmentBoundaries& around,
              std::function<bool()> stop = nullptr)
      : stop_(std::move(stop)),
        structure_(space.structure()),
        table_(table),
        costs_(costs),
        placement_(other),
        live_(structure_.LiveNodes()),
        variable_(structure_.nodes.size(), -1),
        outside_(structure_.nodes.size(), false),
        boundaries_(static_cast<int>(around.boundaries.size())),
        gradients_of_(structure_.nodes.size()) {
    for (size_t g = 0; g < structure_.gradients.size(); ++g) {
      const LayoutRef& stored = structure_.base[structure_.gradients[g].parameter];
      gradients_of_[stored.node].push_back(static_cast<int>(g));
    }
    // Plans each pair of layouts between two kinds of operators once and caches it; offers fewer
    // choices where that would take too much time and memory.
    int kinds = 0;
    for (NodeId n : space.nodes()) kinds += space.EqualNodes(n)[0] == n;
    const double devices = space.num_devices();
    const double pieces = devices > kManyPiecesDevices ? kFewerPieces : kMostPieces;
    const double plans = pieces / (devices * devices);
    const double edges = 4.0 * std::max(1, kinds);
    const size_t most = static_cast<size_t>(
        std::clamp(std::sqrt(plans / edges), 4.0, static_cast<double>(around.most_configs)));
    choices_.resize(structure_.nodes.size());
    for (NodeId n : around.nodes) outside_[n] = true;
    for (const SegmentBoundaries::Boundary& boundary : around.boundaries) {
      for (size_t i = 0; i < boundary.nodes.size(); ++i) {
        variable_[boundary.nodes[i]] = static_cast<int>(counts_.size());
        choices_[boundary.nodes[i]] = boundary.choices[i];
        outside_[boundary.nodes[i]] = true;
      }
      counts_.push_back(static_cast<int>(boundary.choices[0].size()));
    }
    for (NodeId n : live_) {
      if (variable_[n] >= 0) continue;
      variable_[n] = static_cast<int>(counts_.size());
      choices_[n] = {other[n]};
      for (const NodeConfig& config : space.OnFirstDevices(n)) {
        if (choices_[n].size() > most || outside_[n]) break;
        const ConfigEntry* entry = table.Get(n, config);
        if (entry != other[n]) choices_[n].push_back(entry);
      }
      counts_.push_back(static_cast<int>(choices_[n].size()));
    }
  }

  absl::StatusOr<Placement> Best() {
    absl::StatusOr<Elimination> elimination = Sum();
    if (!elimination.ok()) return elimination.status();
    const std::vector<int> best = elimination->Run();
    for (NodeId n : live_) placement_[n] = choices_[n][best[variable_[n]]];
    return placement_;
  }

  absl::StatusOr<std::vector<ParetoPlacement>> Front(int most) {
    absl::StatusOr<std::vector<Factor>> factors = Factors();
    if (!factors.ok()) return factors.status();
    std::vector<std::vector<double>> bytes(counts_.size());
    for (NodeId n : live_) {
      for (const ConfigEntry* entry : choices_[n]) {
        bytes[variable_[n]].push_back(BytesOf(n, entry));
      }
    }
    std::vector<ParetoPlacement> front;
    for (const ParetoPoint& point :
         ParetoFront(counts_, std::vector<int>(counts_.size(), 0), *factors, bytes, most)) {
      ParetoPlacement& made = front.emplace_back();
      made.time = point.time;
      made.bytes = point.memory;
      made.placement = placement_;
      for (NodeId n : live_) made.placement[n] = choices_[n][point.choices[variable_[n]]];
    }
    return front;
  }

  // For each choice of the boundaries.
  absl::StatusOr<std::vector<double>> Table(int boundaries) {
    absl::StatusOr<Elimination> elimination = Sum();
    if (!elimination.ok()) return elimination.status();
    std::vector<int> kept(boundaries);
    std::iota(kept.begin(), kept.end(), 0);
    return elimination->Table(kept);
  }

 private:
  // Returns Cancelled if stopped.
  absl::StatusOr<std::vector<Factor>> Factors() {
    std::vector<Factor> factors;
    const auto stopped = [this] { return stop_ && stop_(); };
    for (NodeId n : live_) {
      if (stopped()) return absl::CancelledError("stopped");
      absl::StatusOr<Factor> factor = Operator(n);
      if (!factor.ok()) return factor.status();
      factors.push_back(*std::move(factor));
    }
    for (size_t v = 0; v < structure_.base.size(); ++v) {
      if (stopped()) return absl::CancelledError("stopped");
      if (absl::Status s = AddValue(static_cast<ValueId>(v), &factors); !s.ok()) return s;
    }
    return factors;
  }

  absl::StatusOr<Elimination> Sum() {
    absl::StatusOr<std::vector<Factor>> factors = Factors();
    if (!factors.ok()) return factors.status();
    Elimination elimination(counts_, std::vector<int>(counts_.size(), 0));
    for (Factor& factor : *factors) elimination.Add(std::move(factor));
    return elimination;
  }

  // Lower bound on the bytes of a node on its most loaded device: parameters in the node's layout
  // with their gradients and states, and results kept for the backward pass.
  double BytesOf(NodeId node, const ConfigEntry* entry) {
    const auto most = [&](int layout, ValueId v, double copies) {
      const std::vector<int64_t>& bytes = costs_.BytesByDevice(layout, ElementBytes(v));
      return copies * static_cast<double>(*std::max_element(bytes.begin(), bytes.end()));
    };
    const Node& n = structure_.graph().node(node);
    double bytes = 0;
    for (size_t k = 0; k < n.outputs.size(); ++k) {
      if (!structure_.nodes[node].def->view) bytes += most(entry->outputs[k], n.outputs[k], 1);
    }
    for (int g : gradients_of_[node]) {
      const ValueId parameter = structure_.gradients[g].parameter;
      const LayoutRef& stored = structure_.base[parameter];
      bytes += most(entry->inputs[stored.index], parameter,
                    2 + costs_.OptimizerMemoryOf(parameter).alike);
    }
    return bytes;
  }

  // For tasks that start at once on all devices.
  double Span(const TaskList& tasks) {
    const auto [it, inserted] = spans_.try_emplace(&tasks, 0);
    if (!inserted) return it->second;
    clocks_.assign(costs_.num_devices(), 0);
    for (const Task& task : tasks) RunTask(task, clocks_.data());
    it->second = static_cast<double>(*std::max_element(clocks_.begin(), clocks_.end()));
    return it->second;
  }

  int LayoutOf(const LayoutRef& ref) {
    return Resolve(structure_, placement_, table_.layouts(), ref);
  }

  // Forward and backward, plus gradient sums and updates in the same layout.
  absl::StatusOr<Factor> Operator(NodeId node) {
    Factor factor{{variable_[node]}, {}};
    const ConfigEntry* other = placement_[node];
    for (const ConfigEntry* entry : choices_[node]) {
      placement_[node] = entry;
      double cost = 0;
      if (!outside_[node]) {
        const NodeTasks* tasks = costs_.Node(node, entry);
        cost = Span(tasks->forward) + Span(tasks->backward);
      }
      for (int p : structure_.nodes[node].positions) {
        const Position& position = structure_.positions[p];
        if (position.role != Position::kGradientSum || position.outputs[0].node != node) continue;
        cost += Span(*costs_.Sum(LayoutOf(position.outputs[0]), ElementBytes(OutputOf(position)),
                                 position.last_slot - position.first_slot));
      }
      for (int g : gradients_of_[node]) {
        if (outside_[node]) break;
        const ValueId parameter = structure_.gradients[g].parameter;
        const int layout = LayoutOf(structure_.slots[structure_.gradients[g].slot].required);
        const int owner = NormReplica(g, table_.layouts().Get(layout));
        absl::StatusOr<const UpdateTasks*> update = costs_.Update(
            layout, LayoutOf(structure_.base[parameter]), ElementBytes(parameter), owner);
        if (!update.ok()) return update.status();
        cost += Span((*update)->update) + Span((*update)->squares);
      }
      factor.cost.push_back(cost);
    }
    placement_[node] = other;
    return factor;
  }

  // From one boundary to another.
  bool PassesThrough(NodeId from, NodeId to) const {
    const auto boundary = [this](NodeId n) { return variable_[n] < boundaries_; };
    return boundary(from) && boundary(to) && variable_[from] != variable_[to];
  }

  // Layout conversions of one value: one factor per distinct operand.
  absl::Status AddValue(ValueId v, std::vector<Factor>* factors) {
    const LayoutRef& base = structure_.base[v];
    if (!base.present()) return absl::OkStatus();
    const bool from_outside = outside_[base.node];
    std::set<std::tuple<NodeId, bool, int, int>> seen;
    for (int s : structure_.slots_of_value[v]) {
      const LayoutRef& ref = structure_.slots[s].required;
      if (!seen.insert({ref.node, ref.output, ref.index, ref.mode}).second) continue;
      if (from_outside && outside_[ref.node] && !PassesThrough(base.node, ref.node)) continue;
      Factor factor{{variable_[base.node]}, {}};
      if (ref.node != base.node) factor.variables.push_back(variable_[ref.node]);
      const ConfigEntry* producer = placement_[base.node];
      const ConfigEntry* consumer = placement_[ref.node];
      bool free = true;
      for (const ConfigEntry* from : choices_[base.node]) {
        const auto& targets =
            ref.node == base.node ? std::vector<const ConfigEntry*>{from} : choices_[ref.node];
        for (const ConfigEntry* to : targets) {
          placement_[base.node] = from;
          placement_[ref.node] = to;
          const int here = LayoutOf(base), there = LayoutOf(ref);
          double cost = 0;
          if (here != there) {
            absl::StatusOr<const ReshardTasks*> tasks =
                costs_.Reshard(here, there, ElementBytes(v));
            if (!tasks.ok()) return tasks.status();
            cost = Span((*tasks)->tasks);
          }
          free = free && cost == 0;
          factor.cost.push_back(cost);
        }
      }
      placement_[base.node] = producer;
      placement_[ref.node] = consumer;
      if (!free) factors->push_back(std::move(factor));
    }
    return absl::OkStatus();
  }

  ValueId OutputOf(const Position& position) const {
    return structure_.graph().node(position.node).outputs[0];
  }
  int ElementBytes(ValueId v) const {
    return static_cast<int>(SizeOf(structure_.graph().value(v).type.dtype));
  }

  const std::function<bool()> stop_;
  const PcgStructure& structure_;
  ConfigTable& table_;
  CostTables& costs_;
  Placement placement_;
  const std::vector<NodeId> live_;
  std::vector<int> variable_;                             // by node
  std::vector<bool> outside_;                             // by node; see SegmentBoundaries
  const int boundaries_;                                  // the first variables
  std::vector<std::vector<const ConfigEntry*>> choices_;  // by node; of `other` first
  std::vector<int> counts_;                               // number of choices, by variable
  std::vector<std::vector<int>> gradients_of_;            // of the parameters in the node's layout
  absl::flat_hash_map<const TaskList*, double> spans_;
  std::vector<Picoseconds> clocks_;
};

}  // namespace

absl::StatusOr<Placement> EliminationPlacement(const SearchSpace& space, ConfigTable& table,
                                               CostTables& costs, const Placement& other,
                                               const std::function<bool()>& stop) {
  absl::StatusOr<Placement> best = SerialSteps(space, table, costs, other, {}, stop).Best();
  if (absl::IsCancelled(best.status())) return other;
  return best;
}

absl::StatusOr<std::vector<ParetoPlacement>> ParetoPlacements(const SearchSpace& space,
                                                              ConfigTable& table, CostTables& costs,
                                                              const Placement& other, int most,
                                                              const std::function<bool()>& stop) {
  SegmentBoundaries around;
  around.most_configs = kParetoConfigs;
  absl::StatusOr<std::vector<ParetoPlacement>> front =
      SerialSteps(space, table, costs, other, around, stop).Front(most);
  if (absl::IsCancelled(front.status())) return std::vector<ParetoPlacement>();
  return front;
}

absl::StatusOr<std::vector<double>> EliminationCosts(const SearchSpace& space, ConfigTable& table,
                                                     CostTables& costs, const Placement& other,
                                                     const SegmentBoundaries& around) {
  return SerialSteps(space, table, costs, other, around)
      .Table(static_cast<int>(around.boundaries.size()));
}

}  // namespace espalier
