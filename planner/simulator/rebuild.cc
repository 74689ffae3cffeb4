// Simulator: rebuilds the task lists that depend on changed nodes, with the devices' busy times,
// and exchanges them for those before the change.
#include <algorithm>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "planner/simulator/gradient_sync.h"
#include "planner/simulator/simulator.h"

namespace espalier {
namespace {

void AddBusy(const Task& task, Picoseconds* busy) {
  if (task.group.empty()) {
    busy[task.device] += task.is_buffered() ? task.send_duration : task.duration;
    if (task.peer >= 0) busy[task.peer] += task.duration;
  }
  for (int device : task.group) busy[device] += task.duration;
}

}  // namespace

int Simulator::Resolved(const LayoutRef& ref) {
  return Resolve(structure_, placement_, table_.layouts(), ref);
}

int Simulator::ElementBytes(ValueId v) const {
  return static_cast<int>(SizeOf(structure_.graph().value(v).type.dtype));
}

void Simulator::MarkDirty(int position) {
  const int segment = position / segment_length_;
  if (std::exchange(segment_stamp_[segment], stamp_) == stamp_) return;
  dirty_.push_back(segment);
  first_dirty_ = std::min(first_dirty_, segment);
  last_dirty_ = std::max(last_dirty_, segment);
}

absl::Status Simulator::RebuildValue(ValueId v) {
  bool changed = false;
  // Whether `layout`, which `ref` denotes, has changed.
  const auto update = [&](const LayoutRef& ref, int* layout) {
    const bool of_several =
        ref.mode == LayoutRef::kParameterSum || ref.mode == LayoutRef::kGradientShard;
    if (node_stamp_[ref.node] != stamp_ && !of_several) return false;
    const int now = Resolved(ref);
    return std::exchange(*layout, now) != now;
  };
  const LayoutRef& base_ref = structure_.base[v];
  const bool loaded = !base_ref.present();  // loaded where it is needed
  bool moved = full_only_;
  if (!loaded) {
    const int before = base_layout_[v];
    if (update(base_ref, &base_layout_[v])) {
      undo_.bases.emplace_back(v, before);
      moved = changed = true;
    }
  }
  const int base = base_layout_[v];
  const int element = ElementBytes(v);
  absl::InlinedVector<int, 8> seen = {base};
  const bool anew = GatheredForEachUse(structure_, placement_, table_.layouts(), v);
  int position = -1;
  for (int s : structure_.slots_of_value[v]) {
    const Slot& slot = structure_.slots[s];
    if (std::exchange(position, slot.position) != slot.position && anew) seen.resize(1);
    const bool sync = slot.position == static_cast<int>(structure_.positions.size());
    const ReshardTasks*& current = sync ? sync_tasks_[gradient_of_value_[v]] : slot_tasks_[s];
    const int before = slot_layout_[s];
    bool same = !moved;
    if (update(slot.required, &slot_layout_[s])) {
      undo_.layouts.emplace_back(s, before);
      changed = true;
      same = false;
    }
    if (loaded) continue;
    const int layout = slot_layout_[s];
    const ReshardTasks* tasks = nullptr;
    if (std::find(seen.begin(), seen.end(), layout) == seen.end()) {
      seen.push_back(layout);
      if (same && current != nullptr) continue;
      absl::StatusOr<const ReshardTasks*> made = costs_.Reshard(base, layout, element);
      if (!made.ok()) return made.status();
      tasks = *made;
    }
    if (current == tasks) continue;
    if (sync) {
      undo_.syncs.emplace_back(gradient_of_value_[v], current);
      sync_dirty_ = true;
    } else {
      undo_.slots.emplace_back(s, current);
      MarkDirty(slot.position);
    }
    current = tasks;
  }
  if (const int g = gradient_of_parameter_[v]; g >= 0 && moved) {
    const int layout = Resolved(structure_.slots[structure_.gradients[g].slot].required);
    absl::StatusOr<const UpdateTasks*> tasks =
        costs_.Update(layout, base, element, NormReplica(g, table_.layouts().Get(layout)));
    if (!tasks.ok()) return tasks.status();
    if (*tasks != update_tasks_[g]) {
      undo_.updates.emplace_back(g, update_tasks_[g]);
      update_tasks_[g] = *tasks;
      sync_dirty_ = true;
    }
  }
  if (changed) touched_.push_back(v);
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
  if (bounded_) {
    if (position_tasks_[p] != nullptr) AddRow(BusyOf(*position_tasks_[p]), -1);
    AddRow(BusyOf(*tasks), 1);
  }
  undo_.positions.emplace_back(p, position_tasks_[p]);
  position_tasks_[p] = tasks;
  MarkDirty(p);
}

absl::StatusOr<bool> Simulator::Rebuild(const std::vector<Change>& changes, Picoseconds limit) {
  ++stamp_;
  values_.clear();
  bool sync = false;  // synchronization and updates may change
  for (const Change& change : changes) {
    undo_.placement.emplace_back(change.first, placement_[change.first]);
    placement_[change.first] = change.second;
    node_stamp_[change.first] = stamp_;
    for (ValueId v : structure_.nodes[change.first].values) {
      if (std::exchange(value_stamp_[v], stamp_) == stamp_) continue;
      values_.push_back(v);
      sync = sync || gradient_of_value_[v] >= 0 || gradient_of_parameter_[v] >= 0;
    }
  }
  // From here on work is only added, so each check is a lower bound of the whole.
  const auto over = [&, this]() {
    return bounded_ && BusiestDevice(sync ? no_sync_ : sync_busy_) >= limit;
  };
  if (bounded_) {
    for (ValueId v : values_) AddRow(&value_busy_[v * devices_], -1);
  }
  for (const Change& change : changes) {
    for (int p : structure_.nodes[change.first].positions) {
      if (std::exchange(position_stamp_[p], stamp_) != stamp_) RebuildPosition(p);
    }
  }
  if (over()) return false;
  for (ValueId v : values_) {
    if (absl::Status status = RebuildValue(v); !status.ok()) return status;
    if (bounded_) CountValue(v);
    if (over()) return false;
  }
  return true;
}

void Simulator::AddRow(const Picoseconds* row, int sign) {
  for (int d = 0; d < devices_; ++d) busy_[d] += sign * row[d];
}

const Picoseconds* Simulator::BusyOf(const TaskList& tasks) {
  std::vector<Picoseconds>& busy = busy_of_[&tasks];
  if (busy.empty()) {
    busy.assign(devices_, 0);
    for (const Task& task : tasks) AddBusy(task, busy.data());
  }
  return busy.data();
}

void Simulator::CountValue(ValueId v) {
  const bool changed =
      !undo_.slots.empty() && structure_.slots[undo_.slots.back().first].value == v;
  if (!changed) return AddRow(&value_busy_[v * devices_], 1);
  const size_t begin = new_busy_.size();
  new_busy_.resize(begin + devices_, 0);
  for (int s : structure_.slots_of_value[v]) {
    if (slot_tasks_[s] == nullptr) continue;
    const Picoseconds* busy = BusyOf(slot_tasks_[s]->tasks);
    for (int d = 0; d < devices_; ++d) new_busy_[begin + d] += busy[d];
  }
  busy_values_.push_back(v);
  AddRow(&new_busy_[begin], 1);
}

Picoseconds Simulator::BusiestDevice(const std::vector<Picoseconds>& sync) const {
  Picoseconds most = 0;
  for (int d = 0; d < devices_; ++d) most = std::max(most, busy_[d] + sync[d]);
  return most;
}

void Simulator::FindSyncBusy(std::vector<Picoseconds>* busy) {
  busy->assign(devices_, 0);
  ForEachSyncTask([&](const Task& task, SyncPhase, int) { AddBusy(task, busy->data()); },
                  [&](const std::vector<int>& ranks, Picoseconds duration, double) {
                    for (int device : ranks) (*busy)[device] += duration;
                  });
}

void Simulator::Undo::Clear() {
  placement.clear();
  bases.clear();
  layouts.clear();
  slots.clear();
  positions.clear();
  syncs.clear();
  updates.clear();
}

void Simulator::Flip() {
  const auto flip = [](auto& log, auto& state) {
    for (auto& [index, other] : log) std::swap(state[index], other);
  };
  flip(undo_.placement, placement_);
  flip(undo_.bases, base_layout_);
  flip(undo_.layouts, slot_layout_);
  flip(undo_.slots, slot_tasks_);
  flip(undo_.positions, position_tasks_);
  flip(undo_.syncs, sync_tasks_);
  flip(undo_.updates, update_tasks_);
}

}  // namespace espalier
