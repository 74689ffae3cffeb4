#include "planner/simulator/simulator.h"

#include <algorithm>
#include <limits>

#include "absl/container/inlined_vector.h"
#include "planner/simulator/positions.h"
#include "planner/simulator/tail.h"

namespace espalier {

Simulator::Simulator(const PcgStructure& structure, ConfigTable& table, CostTables& costs,
                     bool full_only)
    : structure_(structure),
      table_(table),
      costs_(costs),
      full_only_(full_only),
      devices_(costs.num_devices()),
      slot_tasks_(structure.slots.size(), nullptr),
      position_tasks_(structure.positions.size(), nullptr),
      sync_tasks_(structure.gradients.size(), nullptr),
      update_tasks_(structure.gradients.size(), nullptr),
      gradient_of_value_(structure.base.size(), -1),
      gradient_of_parameter_(structure.base.size(), -1),
      position_of_value_(structure.base.size(), -1),
      is_view_(structure.base.size(), false),
      rows_((structure.positions.size() + 1) * devices_, 0),
      value_stamp_(structure.base.size(), 0),
      position_stamp_(structure.positions.size(), 0) {
  for (size_t g = 0; g < structure.gradients.size(); ++g) {
    gradient_of_value_[structure.gradients[g].gradient] = static_cast<int>(g);
    gradient_of_parameter_[structure.gradients[g].parameter] = static_cast<int>(g);
  }
  for (int d = 0; d < devices_; ++d) limited_ = limited_ || costs.device(d).memory_bytes() > 0;

  for (size_t p = 0; p < structure.positions.size(); ++p) {
    const Position& position = structure.positions[p];
    if (position.node == kNoNode) continue;
    for (ValueId v : structure.graph().node(position.node).outputs) {
      if (v == kNoValue) continue;
      position_of_value_[v] = static_cast<int>(p);
      is_view_[v] = position.config_node != kNoNode && position.role <= Position::kBackward &&
                    IsViewOperator(structure.nodes[position.config_node].def->name);
    }
  }

  // A view keeps its operand alive as long as it lives itself.
  last_use_.resize(structure.slots.size());
  for (size_t s = structure.slots.size(); s-- > 0;) {
    const int p = structure.slots[s].position;
    last_use_[s] = p;
    if (p >= static_cast<int>(structure.positions.size())) continue;
    const Position& position = structure.positions[p];
    const bool views = position.config_node != kNoNode &&
                       IsViewOperator(structure.nodes[position.config_node].def->name) &&
                       static_cast<int>(s) == position.last_slot - 1;
    if (!views) continue;
    for (ValueId v : structure.graph().node(position.node).outputs) {
      if (v == kNoValue) continue;
      for (int use : structure.slots_of_value[v]) {
        last_use_[s] = std::max(last_use_[s], last_use_[use]);
      }
    }
  }
}

int Simulator::Resolved(const LayoutRef& ref) {
  return Resolve(structure_, placement_, table_.layouts(), ref);
}

int Simulator::ElementBytes(ValueId v) const {
  return static_cast<int>(SizeOf(structure_.graph().value(v).type.dtype));
}

void Simulator::Touch(int position) {
  first_dirty_ = std::min(first_dirty_, position);
  last_dirty_ = std::max(last_dirty_, position);
}

absl::Status Simulator::RebuildValue(ValueId v) {
  const LayoutRef& base_ref = structure_.base[v];
  if (!base_ref.present()) return absl::OkStatus();  // loaded where it is needed
  const int base = Resolved(base_ref);
  const int element = ElementBytes(v);
  absl::InlinedVector<int, 8> seen = {base};
  const bool anew = MadeForEachUse(structure_, placement_, table_.layouts(), v);
  int before = -1;
  for (int s : structure_.slots_of_value[v]) {
    const Slot& slot = structure_.slots[s];
    if (std::exchange(before, slot.position) != slot.position && anew) seen.resize(1);
    const int layout = Resolved(slot.required);
    const ReshardTasks* tasks = nullptr;
    if (std::find(seen.begin(), seen.end(), layout) == seen.end()) {
      seen.push_back(layout);
      absl::StatusOr<const ReshardTasks*> made = costs_.Reshard(base, layout, element);
      if (!made.ok()) return made.status();
      tasks = *made;
    }
    if (slot.position == static_cast<int>(structure_.positions.size())) {
      const int g = gradient_of_value_[v];
      if (sync_tasks_[g] != tasks) {
        undo_.syncs.emplace_back(g, sync_tasks_[g]);
        sync_tasks_[g] = tasks;
      }
    } else if (slot_tasks_[s] != tasks) {
      undo_.slots.emplace_back(s, slot_tasks_[s]);
      slot_tasks_[s] = tasks;
      Touch(slot.position);
    }
  }
  if (const int g = gradient_of_parameter_[v]; g >= 0) {
    const int layout = Resolved(structure_.slots[structure_.gradients[g].slot].required);
    absl::StatusOr<const UpdateTasks*> tasks =
        costs_.Update(layout, base, element, OwnerOfNorm(g, table_.layouts().Get(layout)));
    if (!tasks.ok()) return tasks.status();
    if (*tasks != update_tasks_[g]) {
      undo_.updates.emplace_back(g, update_tasks_[g]);
      update_tasks_[g] = *tasks;
    }
  }
  return absl::OkStatus();
}

void Simulator::RebuildPosition(int p) {
  static const TaskList* const kNothing = new TaskList;
  const Position& position = structure_.positions[p];
  const TaskList* tasks = nullptr;
  if (position.role == Position::kForward || position.role == Position::kBackward) {
    const NodeTasks* node = costs_.Node(position.config_node, placement_[position.config_node]);
    tasks = position.role == Position::kForward ? &node->forward : &node->backward;
  } else if (position.role == Position::kScatter) {
    tasks = kNothing;
  } else {
    const ValueId v = structure_.graph().node(position.node).outputs[0];
    tasks = costs_.Sum(Resolved(position.outputs[0]), ElementBytes(v),
                       position.last_slot - position.first_slot);
  }
  if (position_tasks_[p] == tasks) return;
  undo_.positions.emplace_back(p, position_tasks_[p]);
  position_tasks_[p] = tasks;
  Touch(p);
}

absl::Status Simulator::Rebuild(const std::vector<Change>& changes) {
  for (const Change& change : changes) placement_[change.first] = change.second;
  ++stamp_;
  for (const Change& change : changes) {
    for (int p : structure_.nodes[change.first].positions) {
      if (std::exchange(position_stamp_[p], stamp_) != stamp_) RebuildPosition(p);
    }
    for (ValueId v : structure_.nodes[change.first].values) {
      if (std::exchange(value_stamp_[v], stamp_) == stamp_) continue;
      if (absl::Status status = RebuildValue(v); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

// Recomputes the clocks from position `first` on; after `last` nothing has changed but the clocks.
void Simulator::Sweep(int first, int last) {
  if (structure_.micro_batches > 1) return SweepMicroBatches();
  const int count = static_cast<int>(structure_.positions.size());
  absl::InlinedVector<Picoseconds, 16> clocks(rows_.begin() + first * devices_,
                                              rows_.begin() + (first + 1) * devices_);
  for (int p = first; p < count; ++p) {
    const Position& position = structure_.positions[p];
    for (int s = position.first_slot; s < position.last_slot; ++s) {
      if (slot_tasks_[s] == nullptr) continue;
      for (const Task& task : slot_tasks_[s]->tasks) RunTask(task, clocks.data());
    }
    for (const Task& task : *position_tasks_[p]) RunTask(task, clocks.data());

    Picoseconds* row = &rows_[(p + 1) * devices_];
    const Picoseconds shift = clocks[0] - row[0];
    bool uniform = p >= last;
    for (int d = 1; d < devices_ && uniform; ++d) uniform = clocks[d] - row[d] == shift;
    if (uniform) {
      if (shift != 0) {
        for (size_t i = (p + 1) * devices_; i < rows_.size(); ++i) rows_[i] += shift;
      }
      return;
    }
    std::copy(clocks.begin(), clocks.end(), row);
  }
}

// What follows the backward pass; it is short and depends on nearly everything: always swept whole.
void Simulator::Tail() {
  absl::InlinedVector<Picoseconds, 16> clocks(rows_.end() - devices_, rows_.end());
  PlayTail([&](const Task& task, TailPart, int) { RunTask(task, clocks.data()); },
           [&](const std::vector<int>& ranks, Picoseconds duration, double) {
             Picoseconds start = 0;
             for (int device : ranks) start = std::max(start, clocks[device]);
             for (int device : ranks) clocks[device] = start + duration;
           });
  time_ = *std::max_element(clocks.begin(), clocks.end());
}

absl::Status Simulator::Reset(const Placement& placement) {
  placement_ = placement;
  std::vector<Change> all;
  for (NodeId n : structure_.LiveNodes()) all.emplace_back(n, placement[n]);
  first_dirty_ = std::numeric_limits<int>::max();
  last_dirty_ = -1;
  undo_ = {};
  if (absl::Status status = Rebuild(all); !status.ok()) return status;
  std::fill(rows_.begin(), rows_.end(), -1);
  std::fill(rows_.begin(), rows_.begin() + devices_, 0);
  Sweep(0, static_cast<int>(structure_.positions.size()));
  Tail();
  penalty_ = Penalty();
  undo_ = {};
  return absl::OkStatus();
}

absl::StatusOr<Picoseconds> Simulator::Propose(const std::vector<Change>& changes) {
  undo_.placement.clear();
  undo_.slots.clear();
  undo_.positions.clear();
  undo_.syncs.clear();
  undo_.updates.clear();
  undo_.time = time_;
  undo_.penalty = penalty_;
  for (const Change& change : changes) {
    undo_.placement.emplace_back(change.first, placement_[change.first]);
  }
  const int count = static_cast<int>(structure_.positions.size());
  first_dirty_ = count;
  last_dirty_ = -1;
  if (absl::Status status = Rebuild(changes); !status.ok()) return status;
  if (full_only_) {
    first_dirty_ = 0;
    last_dirty_ = count;
    // Task lists from scratch as well.
    std::vector<Change> all;
    for (NodeId n : structure_.LiveNodes()) all.emplace_back(n, placement_[n]);
    if (absl::Status status = Rebuild(all); !status.ok()) return status;
  }
  undo_.first_row = first_dirty_ + 1;
  undo_.rows.clear();
  if (first_dirty_ < count) {
    undo_.rows.assign(rows_.begin() + undo_.first_row * devices_, rows_.end());
    Sweep(first_dirty_, last_dirty_);
  }
  Tail();
  penalty_ = Penalty();
  return cost();
}

void Simulator::Accept() {}

void Simulator::Reject() {
  for (auto it = undo_.placement.rbegin(); it != undo_.placement.rend(); ++it) {
    placement_[it->first] = it->second;
  }
  for (auto it = undo_.slots.rbegin(); it != undo_.slots.rend(); ++it) {
    slot_tasks_[it->first] = it->second;
  }
  for (auto it = undo_.positions.rbegin(); it != undo_.positions.rend(); ++it) {
    position_tasks_[it->first] = it->second;
  }
  for (auto it = undo_.syncs.rbegin(); it != undo_.syncs.rend(); ++it) {
    sync_tasks_[it->first] = it->second;
  }
  for (auto it = undo_.updates.rbegin(); it != undo_.updates.rend(); ++it) {
    update_tasks_[it->first] = it->second;
  }
  if (!undo_.rows.empty()) {
    std::copy(undo_.rows.begin(), undo_.rows.end(), rows_.begin() + undo_.first_row * devices_);
  }
  time_ = undo_.time;
  penalty_ = undo_.penalty;
}

template <typename Run>
void Simulator::ForEachTask(Run run) {
  ForEachPosition([&](int p, int micro_batch) {
    const Position& position = structure_.positions[p];
    for (int s = position.first_slot; s < position.last_slot; ++s) {
      if (slot_tasks_[s] == nullptr) continue;
      for (const Task& task : slot_tasks_[s]->tasks) run(task);
    }
    for (const Task& task : *position_tasks_[p]) run(task);
    for (const TaskList* tasks : AccumulationsOf(p, micro_batch)) {
      for (const Task& task : *tasks) run(task);
    }
  });
  for (const ReshardTasks* sync : sync_tasks_) {
    if (sync == nullptr) continue;
    for (const Task& task : sync->tasks) run(task);
  }
  for (const UpdateTasks* update : update_tasks_) {
    if (costs_.optimizer().clip_norm() > 0 || costs_.optimizer().has_loss_scale()) {
      for (const Task& task : update->squares) run(task);
    }
    for (const Task& task : update->update) run(task);
  }
}

proto::Prediction Simulator::Predict() {
  std::vector<Picoseconds> compute(devices_, 0), communication(devices_, 0);
  double moved = 0;
  ForEachTask([&](const Task& task) {
    moved += task.bytes_moved;
    if (!task.group.empty()) {
      for (int device : task.group) communication[device] += task.duration;
    } else if (task.peer >= 0) {
      communication[task.device] += task.duration;
      communication[task.peer] += task.duration;
    } else {
      compute[task.device] += task.duration;
    }
  });
  proto::Prediction prediction;
  prediction.set_step_seconds(ToSeconds(time_));
  prediction.set_compute_seconds(ToSeconds(*std::max_element(compute.begin(), compute.end())));
  prediction.set_communication_seconds(
      ToSeconds(*std::max_element(communication.begin(), communication.end())));
  prediction.set_bytes_moved(moved);
  for (int64_t bytes : EstimateMemory()) prediction.add_peak_bytes(bytes);
  return prediction;
}

Picoseconds Simulator::Penalty() {
  if (!limited_) return 0;
  constexpr int64_t kPerMiB = 1'000'000'000;  // one millisecond
  const std::vector<int64_t> peak = EstimateMemory();
  Picoseconds penalty = 0;
  for (int d = 0; d < devices_; ++d) {
    const int64_t limit = costs_.device(d).memory_bytes();
    if (limit > 0 && peak[d] > limit) penalty += ((peak[d] - limit) / (1 << 20) + 1) * kPerMiB;
  }
  return penalty;
}

}  // namespace espalier
