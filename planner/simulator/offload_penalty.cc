// Simulator: the estimated cost of swaps and recomputation on devices over their memory. A function
// of the placement alone, whatever changes led to it.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "ops/optimizer/optimizer.h"
#include "planner/memory/offload_estimate.h"
#include "planner/memory/workspace.h"
#include "planner/simulator/schedule.h"

namespace espalier {
namespace {

constexpr int kMinIdlePoints = 6;     // program points; shorter idle times are not used
constexpr double kForward = 1.0 / 3;  // forward share of an operator's time, as in lowering

}  // namespace

// A value in one layout between two uses of it.
struct Simulator::IdleValue {
  ValueId value = kNoValue;
  const std::vector<int64_t>* bytes = nullptr;  // by device
  int after = 0, before = 0;                    // points
  bool can_swap = true;
  double recompute_seconds = -1;
  absl::InlinedVector<int, 2> from;  // as in IdleTensor
};

struct Simulator::OffloadSteps {
  std::vector<std::pair<int, int>> points;  // in order, with their micro-batches
  std::vector<int> of;                      // by micro-batch and point: index into `points`
  std::vector<double> seconds;              // by position, on each of its devices
  int count = 0;                            // points of one micro-batch

  int Of(int micro_batch, int point) const { return of[micro_batch * count + point]; }
};

void Simulator::EnableOffloadPenalty(const OffloadSettings& settings) {
  offload_penalty_ = settings.swap || settings.recompute;
  offload_settings_ = settings;
  if (!offload_penalty_ || !uses_of_slot_.empty()) return;
  const int end = static_cast<int>(structure_.positions.size());
  for (ValueId v : all_values_) root_.push_back(v);
  uses_of_slot_.resize(structure_.slots.size());
  const auto outputs = [this](const Position& position) -> const std::vector<ValueId>& {
    return structure_.graph().node(position.node).outputs;
  };
  for (size_t s = structure_.slots.size(); s-- > 0;) {
    std::vector<int>& uses = uses_of_slot_[s];
    const int p = structure_.slots[s].position;
    uses.push_back(ComputePoint(p));
    if (p >= end || structure_.positions[p].node == kNoNode) continue;
    const Position& position = structure_.positions[p];
    if (static_cast<int>(s) != position.last_slot - 1) continue;
    for (ValueId v : outputs(position)) {
      if (v == kNoValue || !is_view_[v]) continue;
      for (int use : structure_.slots_of_value[v]) {
        uses.insert(uses.end(), uses_of_slot_[use].begin(), uses_of_slot_[use].end());
      }
    }
    std::sort(uses.begin(), uses.end());
    uses.erase(std::unique(uses.begin(), uses.end()), uses.end());
  }
  for (int p = 0; p < end; ++p) {
    const Position& position = structure_.positions[p];
    if (position.node == kNoNode) continue;
    for (ValueId v : outputs(position)) {
      if (v == kNoValue || !is_view_[v]) continue;
      root_[v] = root_[structure_.slots[position.last_slot - 1].value];
    }
    if (position.config_node != kNoNode && position.role <= Position::kBackward &&
        structure_.nodes[position.config_node].def->precision == Precision::kNarrow) {
      narrow_positions_.push_back(p);
    }
  }
  for (ValueId v : all_values_) {
    if (!structure_.base[v].present() || structure_.slots_of_value[v].empty()) continue;
    const std::vector<int>& slots = structure_.slots_of_value[v];
    const bool parameter = structure_.graph().value(v).kind == ValueKind::kParameter;
    const int first = parameter ? ReshardPoint(structure_.slots[slots[0]].position)
                                : ComputePoint(position_of_value_[v]);
    int last = first;
    for (int s : slots) last = std::max(last, uses_of_slot_[s].back());
    if (last - first > kMinIdlePoints) idle_values_.push_back(v);
  }
}

double Simulator::SecondsOfPosition(int p) {
  const Position& position = structure_.positions[p];
  if (position.config_node == kNoNode || position.role > Position::kBackward) return 0;
  const NodeTasks* tasks = costs_.Node(position.config_node, placement_[position.config_node]);
  Picoseconds slowest = 0;
  for (size_t part = 0; part < tasks->forward.size(); ++part) {
    slowest = std::max(slowest, tasks->forward[part].duration + tasks->backward[part].duration);
  }
  return ToSeconds(slowest) * (position.role == Position::kForward ? kForward : 1 - kForward);
}

// Returns the memory to reserve for kernels' workspace if the program is rewritten.
int64_t Simulator::Workspace(int device) {
  int64_t most = 0;
  for (int p : narrow_positions_) {
    const Position& position = structure_.positions[p];
    int64_t bytes = 0;
    const auto add = [&](ValueId v, int layout) {
      const int64_t here =
          v == kNoValue || layout < 0 ? 0 : costs_.BytesByDevice(layout, ElementBytes(v))[device];
      bytes += here;
      return here;
    };
    int64_t weights = 0;
    for (int s = position.first_slot; s < position.last_slot; ++s) {
      const int64_t operand = add(structure_.slots[s].value, slot_layout_[s]);
      if (s == position.first_slot + 1) weights = operand;
    }
    for (ValueId v : structure_.graph().node(position.node).outputs) {
      if (v != kNoValue) add(v, base_layout_[v]);
    }
    const OpDef& def = *structure_.nodes[position.config_node].def;
    const bool gradient = position.role == Position::kBackward;
    most = std::max(most, KernelWorkspace(def.name, gradient, bytes, weights));
  }
  return most;
}

// Returns the last point that uses the value in this layout; -1 if none does.
int Simulator::LastUse(ValueId v, int layout) const {
  int last = -1;
  for (int s : structure_.slots_of_value[v]) {
    if (slot_layout_[s] == layout) last = std::max(last, uses_of_slot_[s].back());
  }
  return last;
}

// Whether the value's producer could run again at `point`, from the values `from` and others that
// are always resident.
bool Simulator::CanRecompute(ValueId v, int point, absl::InlinedVector<ValueId, 4>* from) const {
  const Position& position = structure_.positions[position_of_value_[v]];
  if (position.role != Position::kForward) return false;
  int outputs = 0;
  for (ValueId out : structure_.graph().node(position.node).outputs) outputs += out != kNoValue;
  if (outputs != 1) return false;
  for (int s = position.first_slot; s < position.last_slot; ++s) {
    const ValueId u = structure_.slots[s].value;
    if (u == kNoValue || !structure_.base[u].present()) continue;
    const bool parameter = structure_.graph().value(u).kind == ValueKind::kParameter;
    // Running statistics change.
    if (parameter && gradient_of_parameter_[u] < 0) return false;
    if (parameter && slot_layout_[s] == base_layout_[u]) continue;
    if (GatheredForEachUse(structure_, placement_, table_.layouts(), u) ||
        LastUse(u, slot_layout_[s]) < point) {
      return false;
    }
    from->push_back(root_[u]);
  }
  return true;
}

void Simulator::FindIdle(std::vector<IdleValue>* idle) {
  std::vector<int> first_of(structure_.base.size(), -1);  // by value: index into `idle`
  absl::InlinedVector<ValueId, 4> from;
  const int distance =
      2 * std::max(offload_settings_.swapout_threshold, offload_settings_.swapin_groupby);
  for (ValueId v : idle_values_) {
    const size_t begin = idle->size();
    AddIdle(v, idle);
    if (idle->size() == begin) continue;
    first_of[v] = static_cast<int>(begin);
    for (size_t i = begin; i < idle->size(); ++i) {
      IdleValue& added = (*idle)[i];
      added.can_swap = added.before - added.after > distance;
      if (added.recompute_seconds < 0) continue;
      from.clear();
      if (!CanRecompute(v, added.before, &from)) {
        added.recompute_seconds = -1;
        continue;
      }
      for (ValueId u : from) {
        if (u == v || first_of[u] < 0) continue;
        for (size_t f = first_of[u]; f < begin && (*idle)[f].value == u; ++f) {
          const bool covers = (*idle)[f].after < added.before && added.before < (*idle)[f].before;
          if (covers) added.from.push_back(static_cast<int>(f));
        }
      }
    }
  }
}

// Adds the intervals in which a value, or a resharded copy of it, is alive and unused for more than
// one point. Lifetimes as in AddMemory (memory_estimate.cc), with all uses.
void Simulator::AddIdle(ValueId v, std::vector<IdleValue>* idle) {
  struct Held {
    int layout = 0;
    int first = 0;
    absl::InlinedVector<int, 8> uses;
  };
  const int end = static_cast<int>(structure_.positions.size());
  const int element = ElementBytes(v);
  const bool parameter = structure_.graph().value(v).kind == ValueKind::kParameter;
  const bool anew = GatheredForEachUse(structure_, placement_, table_.layouts(), v);
  const int g = gradient_of_value_[v];
  if (g >= 0 && starts_[g] >= 0) return;  // part of its bucket
  absl::InlinedVector<Held, 4> held;
  held.push_back({base_layout_[v], 0, {}});
  if (!parameter) held[0].uses.push_back(held[0].first = ComputePoint(position_of_value_[v]));
  for (int s : structure_.slots_of_value[v]) {
    const int layout = slot_layout_[s];
    int needed = ReshardPoint(structure_.slots[s].position);
    absl::InlinedVector<int, 8> uses(uses_of_slot_[s].begin(), uses_of_slot_[s].end());
    if (g >= 0 && structure_.slots[s].position == end && sync_tasks_[g] == nullptr &&
        UpdatesEarly(costs_.optimizer()) && structure_.micro_batches == 1) {
      needed = ReshardPoint(structure_.gradients[g].ready);
      uses = {ComputePoint(structure_.gradients[g].ready)};
    }
    auto it = std::find_if(held.begin(), held.end(), [&](const Held& h) {
      return h.layout == layout && (!anew || &h == &held[0] || h.first == needed);
    });
    if (it == held.end()) {
      held[0].uses.push_back(needed);
      held.push_back({layout, needed, {needed}});
      it = held.end() - 1;
    }
    it->uses.insert(it->uses.end(), uses.begin(), uses.end());
  }
  const bool makes = !parameter && !is_view_[v] && g < 0 && held.size() >= 1 &&
                     structure_.positions[position_of_value_[v]].role == Position::kForward;
  const auto add = [&](Held& h, const std::vector<int64_t>& bytes, bool recompute) {
    std::sort(h.uses.begin(), h.uses.end());
    for (size_t i = 1; i < h.uses.size(); ++i) {
      if (h.uses[i] - h.uses[i - 1] <= 2) continue;
      IdleValue& added = idle->emplace_back();
      added.value = v;
      added.bytes = &bytes;
      added.after = h.uses[i - 1];
      added.before = h.uses[i];
      if (recompute) added.recompute_seconds = SecondsOfPosition(position_of_value_[v]);
    }
  };
  for (size_t i = 1; i < held.size(); ++i) {
    const ReshardTasks& reshard = **costs_.Reshard(held[0].layout, held[i].layout, element);
    const bool in_place = !parameter && held.size() == 2 && reshard.all_reduce_only;
    if (reshard.aliases || in_place) {
      held[0].uses.insert(held[0].uses.end(), held[i].uses.begin(), held[i].uses.end());
    }
    if (!in_place && !anew) add(held[i], reshard.new_bytes, false);
  }
  // A parameter stays resident; a view shares its operand's memory.
  if (parameter || is_view_[v]) return;
  add(held[0], costs_.BytesByDevice(held[0].layout, element), makes);
}

OffloadEstimate Simulator::OffloadEstimateOf(int device, const OffloadSteps& steps,
                                             const std::vector<IdleValue>& idle) {
  OffloadEstimateProblem problem;
  problem.limit = costs_.device(device).memory_bytes() - Workspace(device);
  int first = -1, last = -1;  // steps over the limit
  int64_t now = kept_[device];
  const int end = static_cast<int>(structure_.positions.size());
  for (const auto& [point, micro_batch] : steps.points) {
    now += ChangeAt(device, point, micro_batch);
    if (now > problem.limit) {
      last = static_cast<int>(problem.live.size());
      if (first < 0) first = last;
    }
    problem.live.push_back(now);
    const int p = point / 2;
    double seconds = 0;
    if (point % 2 == 1 && p < end && steps.seconds[p] > 0) {
      for (const Task& task : *position_tasks_[p]) {
        if (task.device == device) {
          seconds = steps.seconds[p];
          break;
        }
      }
    }
    problem.seconds.push_back(seconds);
  }
  std::vector<int> index(idle.size());
  for (int m = 0; m < structure_.micro_batches; ++m) {
    std::fill(index.begin(), index.end(), -1);
    for (size_t i = 0; i < idle.size(); ++i) {
      const IdleValue& value = idle[i];
      const int64_t bytes = (*value.bytes)[device];
      const int after = steps.Of(m, value.after), before = steps.Of(m, value.before);
      if (bytes == 0 || after >= last || before <= first) continue;
      index[i] = static_cast<int>(problem.idle.size());
      IdleTensor& tensor = problem.idle.emplace_back();
      tensor.bytes = bytes;
      tensor.after = after;
      tensor.before = before;
      tensor.can_swap = value.can_swap;
      tensor.recompute_seconds = value.recompute_seconds;
      for (int f : value.from) {
        if (index[f] >= 0) tensor.from.push_back(index[f]);
      }
    }
  }
  return EstimateOffload(problem, offload_settings_);
}

Picoseconds Simulator::OffloadPenalty(const std::vector<int64_t>& peak, Picoseconds limit) {
  const int end = static_cast<int>(structure_.positions.size());
  OffloadSteps steps;
  std::vector<IdleValue> idle;
  Picoseconds left = 0, added = 0;
  OffloadEstimate before;
  int before_device = -2;
  for (int d = 0; d < devices_; ++d) {
    const int64_t memory = costs_.device(d).memory_bytes();
    if (memory <= 0 || peak[d] <= memory || kept_[d] > memory) continue;
    if (steps.points.empty()) {
      steps.points = ProgramPoints();
      steps.count = ComputePoint(end) + 1;
      steps.of.assign(static_cast<size_t>(structure_.micro_batches) * steps.count, 0);
      for (size_t i = 0; i < steps.points.size(); ++i) {
        const auto& [point, micro_batch] = steps.points[i];
        steps.of[micro_batch * steps.count + point] = static_cast<int>(i);
      }
      // The last point is shared by all micro-batches.
      for (int m = 1; m < structure_.micro_batches; ++m) {
        steps.of[m * steps.count + ComputePoint(end)] = steps.of[ComputePoint(end)];
      }
      for (int p = 0; p < end; ++p) steps.seconds.push_back(SecondsOfPosition(p));
      FindIdle(&idle);
    }
    // Devices that run the same operators have the same penalty.
    const bool alike = before_device == d - 1 && memory == costs_.device(d - 1).memory_bytes() &&
                       kept_[d] == kept_[d - 1] && change_[d] == change_[d - 1] &&
                       gradient_change_[d] == gradient_change_[d - 1];
    if (!alike) before = OffloadEstimateOf(d, steps, idle);
    before_device = d;
    added = std::max(added, ToPicoseconds(before.seconds));
    if (before.bytes_left > 0) left += OverflowPenalty(d, before.bytes_left);
    if (time_ + added + left >= limit) break;
  }
  can_fit_ = can_fit_ && left == 0;
  return added + left;
}

}  // namespace espalier
