#include "planner/search/elimination.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "planner/pcg/buckets.h"

namespace espalier {
namespace {

// Of all plans from one layout to another: their parts on each two devices.
constexpr double kMostPieces = 2e7;

constexpr int64_t kMostSums = 4'000'000;  // in one elimination

// A summand: what it costs for each choice of its variables, the first outermost.
struct Factor {
  std::vector<int> variables;
  std::vector<double> cost;
};

// Minimises sums of factors.
class Elimination {
 public:
  // choices: by variable. given: what a variable is fixed to if eliminating it is too much.
  Elimination(std::vector<int> choices, std::vector<int> given)
      : choices_(std::move(choices)), given_(std::move(given)), factors_of_(choices_.size()) {}

  void Add(Factor factor) {
    for (int v : factor.variables) factors_of_[v].push_back(static_cast<int>(factors_.size()));
    factors_.push_back(std::move(factor));
  }

  // The best choice of each variable.
  std::vector<int> Run() {
    std::vector<double> sums(choices_.size());
    std::set<std::pair<double, int>> left;  // cheapest first
    for (size_t v = 0; v < choices_.size(); ++v) {
      sums[v] = Sums(static_cast<int>(v));
      left.emplace(sums[v], v);
    }
    while (!left.empty()) {
      const int next = left.begin()->second;
      left.erase(left.begin());
      const std::vector<int> neighbours = Scope(next);
      Eliminate(next);
      for (int v : neighbours) {
        left.erase({sums[v], v});
        sums[v] = Sums(v);
        left.emplace(sums[v], v);
      }
    }
    std::vector<int> best(choices_.size(), 0);
    for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
      int64_t at = 0;
      for (int v : step->scope) at = at * choices_[v] + best[v];
      best[step->variable] = step->best[at];
    }
    return best;
  }

 private:
  struct Step {
    int variable = 0;
    std::vector<int> scope;
    std::vector<int> best;  // by the choices of the scope
  };

  std::vector<int> Scope(int variable) const {
    std::set<int> scope;
    for (int f : factors_of_[variable]) {
      scope.insert(factors_[f].variables.begin(), factors_[f].variables.end());
    }
    scope.erase(variable);
    return {scope.begin(), scope.end()};
  }

  double Sums(int variable) const {
    double sums = choices_[variable];
    for (int v : Scope(variable)) sums *= choices_[v];
    return sums;
  }

  void Eliminate(int variable) {
    const bool fixed = Sums(variable) > kMostSums;
    Step step{variable, Scope(variable), {}};
    std::vector<Factor> taken;
    for (int f : std::exchange(factors_of_[variable], {})) {
      taken.push_back(std::exchange(factors_[f], {}));
      for (int v : taken.back().variables) std::erase(factors_of_[v], f);
    }
    if (fixed) {
      step.scope.clear();
      step.best = {given_[variable]};
      for (const Factor& f : taken) Add(Fix(f, variable));
    } else {
      Add(Minimise(variable, taken, &step));
    }
    steps_.push_back(std::move(step));
  }

  // Step between neighbours of `variable` in a factor; 0 if it is not one of its variables.
  int64_t Stride(const Factor& f, int variable) const {
    int64_t stride = 1;
    for (size_t i = f.variables.size(); i-- > 0;) {
      if (f.variables[i] == variable) return stride;
      stride *= choices_[f.variables[i]];
    }
    return 0;
  }

  // Calls visit(offsets into the factors) for all choices of the scope, the first outermost.
  template <typename Visit>
  void ForEach(const std::vector<int>& scope, const std::vector<Factor>& factors,
               Visit visit) const {
    std::vector<std::vector<int64_t>> strides(scope.size());
    for (size_t i = 0; i < scope.size(); ++i) {
      for (const Factor& f : factors) strides[i].push_back(Stride(f, scope[i]));
    }
    std::vector<int> at(scope.size(), 0);
    std::vector<int64_t> offsets(factors.size(), 0);
    while (true) {
      visit(offsets);
      size_t i = scope.size();
      while (i-- > 0) {
        const int64_t step = ++at[i] < choices_[scope[i]] ? 1 : 1 - choices_[scope[i]];
        for (size_t f = 0; f < factors.size(); ++f) offsets[f] += step * strides[i][f];
        if (step == 1) break;
        at[i] = 0;
      }
      if (i == static_cast<size_t>(-1)) return;
    }
  }

  Factor Minimise(int variable, const std::vector<Factor>& taken, Step* step) const {
    Factor rest{step->scope, {}};
    std::vector<int64_t> strides;
    for (const Factor& f : taken) strides.push_back(Stride(f, variable));
    ForEach(step->scope, taken, [&](const std::vector<int64_t>& offsets) {
      int best = 0;
      double least = 0;
      for (int choice = 0; choice < choices_[variable]; ++choice) {
        double sum = 0;
        for (size_t f = 0; f < taken.size(); ++f) {
          sum += taken[f].cost[offsets[f] + choice * strides[f]];
        }
        if (choice > 0 && sum >= least) continue;
        best = choice;
        least = sum;
      }
      step->best.push_back(best);
      rest.cost.push_back(least);
    });
    return rest;
  }

  Factor Fix(const Factor& f, int variable) const {
    Factor rest;
    for (int v : f.variables) {
      if (v != variable) rest.variables.push_back(v);
    }
    const int64_t start = given_[variable] * Stride(f, variable);
    ForEach(rest.variables, {f}, [&](const std::vector<int64_t>& offsets) {
      rest.cost.push_back(f.cost[start + offsets[0]]);
    });
    return rest;
  }

  const std::vector<int> choices_, given_;
  std::vector<Factor> factors_;               // empty: taken
  std::vector<std::vector<int>> factors_of_;  // by variable
  std::vector<Step> steps_;
};

// The sum, of one graph.
class SerialSteps {
 public:
  SerialSteps(const SearchSpace& space, ConfigTable& table, CostTables& costs,
              const Placement& other)
      : structure_(space.structure()),
        table_(table),
        costs_(costs),
        placement_(other),
        live_(structure_.LiveNodes()),
        variable_(structure_.nodes.size(), -1),
        gradients_of_(structure_.nodes.size()) {
    for (size_t g = 0; g < structure_.gradients.size(); ++g) {
      const LayoutRef& stored = structure_.base[structure_.gradients[g].parameter];
      gradients_of_[stored.node].push_back(static_cast<int>(g));
    }
    // Each pair of layouts between two kinds of operators is planned once, and kept: fewer choices
    // where that would take too much time and memory.
    int kinds = 0;
    for (NodeId n : space.nodes()) kinds += space.Alike(n)[0] == n;
    const double devices = space.num_devices();
    const double plans = kMostPieces / (devices * devices);
    const double edges = 4.0 * std::max(1, kinds);
    const size_t most = static_cast<size_t>(std::clamp(std::sqrt(plans / edges), 4.0, 64.0));
    for (NodeId n : live_) {
      variable_[n] = static_cast<int>(choices_.size());
      choices_.push_back({other[n]});
      for (const NodeConfig& config : space.OnFirstDevices(n)) {
        if (choices_.back().size() > most) break;
        const ConfigEntry* entry = table.Get(n, config);
        if (entry != other[n]) choices_.back().push_back(entry);
      }
    }
  }

  absl::StatusOr<Placement> Best() {
    std::vector<int> counts;
    for (const auto& choices : choices_) counts.push_back(static_cast<int>(choices.size()));
    Elimination elimination(counts, std::vector<int>(counts.size(), 0));
    for (NodeId n : live_) {
      absl::StatusOr<Factor> factor = Operator(n);
      if (!factor.ok()) return factor.status();
      elimination.Add(*std::move(factor));
    }
    for (size_t v = 0; v < structure_.base.size(); ++v) {
      if (absl::Status s = AddValue(static_cast<ValueId>(v), &elimination); !s.ok()) return s;
    }
    const std::vector<int> best = elimination.Run();
    for (NodeId n : live_) placement_[n] = choices_[variable_[n]][best[variable_[n]]];
    return placement_;
  }

 private:
  // Of tasks that begin at once on all devices.
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

  // Forward and backward, and the sums and updates that lie as it does.
  absl::StatusOr<Factor> Operator(NodeId node) {
    Factor factor{{variable_[node]}, {}};
    const ConfigEntry* other = placement_[node];
    for (const ConfigEntry* entry : choices_[variable_[node]]) {
      placement_[node] = entry;
      const NodeTasks* tasks = costs_.Node(node, entry);
      double cost = Span(tasks->forward) + Span(tasks->backward);
      for (int p : structure_.nodes[node].positions) {
        const Position& position = structure_.positions[p];
        if (position.role != Position::kGradientSum || position.outputs[0].node != node) continue;
        cost += Span(*costs_.Sum(LayoutOf(position.outputs[0]), ElementBytes(OutputOf(position)),
                                 position.last_slot - position.first_slot));
      }
      for (int g : gradients_of_[node]) {
        const ValueId parameter = structure_.gradients[g].parameter;
        const int layout = LayoutOf(structure_.slots[structure_.gradients[g].slot].required);
        const int owner = OwnerOfNorm(g, table_.layouts().Get(layout));
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

  // The changes of layout of one value, one factor for each different operand.
  absl::Status AddValue(ValueId v, Elimination* elimination) {
    const LayoutRef& base = structure_.base[v];
    if (!base.present()) return absl::OkStatus();
    std::set<std::tuple<NodeId, bool, int, int>> seen;
    for (int s : structure_.slots_of_value[v]) {
      const LayoutRef& ref = structure_.slots[s].required;
      if (!seen.insert({ref.node, ref.output, ref.index, ref.mode}).second) continue;
      Factor factor{{variable_[base.node]}, {}};
      if (ref.node != base.node) factor.variables.push_back(variable_[ref.node]);
      const ConfigEntry* producer = placement_[base.node];
      const ConfigEntry* consumer = placement_[ref.node];
      bool free = true;
      for (const ConfigEntry* from : choices_[variable_[base.node]]) {
        const auto& targets = ref.node == base.node ? std::vector<const ConfigEntry*>{from}
                                                    : choices_[variable_[ref.node]];
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
      if (!free) elimination->Add(std::move(factor));
    }
    return absl::OkStatus();
  }

  ValueId OutputOf(const Position& position) const {
    return structure_.graph().node(position.node).outputs[0];
  }
  int ElementBytes(ValueId v) const {
    return static_cast<int>(SizeOf(structure_.graph().value(v).type.dtype));
  }

  const PcgStructure& structure_;
  ConfigTable& table_;
  CostTables& costs_;
  Placement placement_;
  const std::vector<NodeId> live_;
  std::vector<int> variable_;                             // by node
  std::vector<std::vector<const ConfigEntry*>> choices_;  // by variable; of `other` first
  std::vector<std::vector<int>> gradients_of_;            // of the parameters that lie as a node
  absl::flat_hash_map<const TaskList*, double> spans_;
  std::vector<Picoseconds> clocks_;
};

}  // namespace

absl::StatusOr<Placement> EliminationPlacement(const SearchSpace& space, ConfigTable& table,
                                               CostTables& costs, const Placement& other) {
  return SerialSteps(space, table, costs, other).Best();
}

}  // namespace espalier
