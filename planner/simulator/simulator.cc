#include "planner/simulator/simulator.h"

#include <algorithm>
#include <limits>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "planner/simulator/gradient_sync.h"
#include "planner/simulator/schedule.h"

namespace espalier {
namespace {

// Positions per segment: about where matrices over the devices begin to pay off.
int SegmentLength(int devices) { return std::clamp(devices / 2, 4, 32); }

void AddBusy(const Task& task, Picoseconds* busy) {
  if (task.group.empty()) {
    busy[task.device] += task.is_buffered() ? task.send_duration : task.duration;
    if (task.peer >= 0) busy[task.peer] += task.duration;
  }
  for (int device : task.group) busy[device] += task.duration;
}

}  // namespace

Simulator::Simulator(const PcgStructure& structure, ConfigTable& table, CostTables& costs,
                     bool full_only)
    : structure_(structure),
      table_(table),
      costs_(costs),
      full_only_(full_only),
      devices_(costs.num_devices()),
      bounded_(!full_only && devices_ <= MaxPlusMatrix::kMaxMatrixDevices),
      live_(structure.LiveNodes()),
      placement_(structure.nodes.size(), nullptr),
      base_layout_(structure.base.size(), -1),
      slot_layout_(structure.slots.size(), -1),
      slot_tasks_(structure.slots.size(), nullptr),
      position_tasks_(structure.positions.size(), nullptr),
      sync_tasks_(structure.gradients.size(), nullptr),
      update_tasks_(structure.gradients.size(), nullptr),
      gradient_of_value_(structure.base.size(), -1),
      gradient_of_parameter_(structure.base.size(), -1),
      position_of_value_(structure.base.size(), -1),
      is_view_(structure.base.size(), false),
      segment_length_(SegmentLength(devices_)),
      segments_((structure.positions.size() + segment_length_ - 1) / segment_length_),
      clocks_((segments_.size() + 1) * devices_, 0),
      remaining_((segments_.size() + 1) * devices_, 0),
      busy_(devices_, 0),
      sync_busy_(devices_, 0),
      value_busy_(bounded_ ? structure.base.size() * devices_ : 0, 0),
      no_sync_(devices_, 0),
      node_stamp_(structure.nodes.size(), 0),
      value_stamp_(structure.base.size(), 0),
      position_stamp_(structure.positions.size(), 0),
      segment_stamp_(segments_.size(), 0),
      scratch_(devices_, 0) {
  for (size_t v = 0; v < structure.base.size(); ++v) {
    all_values_.push_back(static_cast<ValueId>(v));
  }
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
                    structure.nodes[position.config_node].def->view;
    }
  }

  // A view keeps its operand alive as long as itself.
  last_use_.resize(structure.slots.size());
  for (size_t s = structure.slots.size(); s-- > 0;) {
    const int p = structure.slots[s].position;
    last_use_[s] = p;
    if (p >= static_cast<int>(structure.positions.size())) continue;
    const Position& position = structure.positions[p];
    const bool views = position.config_node != kNoNode &&
                       structure.nodes[position.config_node].def->view &&
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

template <typename Run>
void Simulator::ForEachTaskOf(int p, Run run) const {
  const Position& position = structure_.positions[p];
  for (int s = position.first_slot; s < position.last_slot; ++s) {
    if (slot_tasks_[s] == nullptr) continue;
    for (const Task& task : slot_tasks_[s]->tasks) run(task);
  }
  for (const Task& task : *position_tasks_[p]) run(task);
}

void Simulator::RunPositions(int begin, int end, Picoseconds* clocks) const {
  for (int p = begin; p < end; ++p) {
    ForEachTaskOf(p, [clocks](const Task& task) { RunTask(task, clocks); });
  }
}

int Simulator::SegmentEnd(int segment) const {
  return std::min(static_cast<int>(structure_.positions.size()), SegmentBegin(segment + 1));
}

// Advances the clocks past a segment that is unchanged from the accepted placement.
void Simulator::Advance(int segment, Picoseconds* clocks) {
  segments_[segment].Advance(devices_, clocks, [this, segment](const auto& visit) {
    for (int p = SegmentBegin(segment); p < SegmentEnd(segment); ++p) ForEachTaskOf(p, visit);
  });
}

void Simulator::ExtendClocks(int row) {
  for (; clocks_known_ < row; ++clocks_known_) {
    Picoseconds* from = &clocks_[clocks_known_ * devices_];
    std::copy(from, from + devices_, from + devices_);
    Advance(clocks_known_, from + devices_);
  }
}

void Simulator::ExtendRemaining(int row) {
  const int count = num_segments();
  // Before a task, a device's remaining time is the task's duration plus the longest remaining time
  // of its participants.
  const auto before = [](const int* ranks, size_t n, Picoseconds duration, Picoseconds* remaining) {
    Picoseconds longest = 0;
    for (size_t i = 0; i < n; ++i) longest = std::max(longest, remaining[ranks[i]]);
    for (size_t i = 0; i < n; ++i) remaining[ranks[i]] = longest + duration;
  };
  const auto before_task = [&before](const Task& task, Picoseconds* remaining) {
    const int pair[] = {task.device, task.peer};
    if (!task.group.empty()) {
      before(task.group.data(), task.group.size(), task.duration, remaining);
    } else if (task.is_buffered()) {
      remaining[task.peer] += task.duration;
      remaining[task.device] =
          std::max(remaining[task.device], remaining[task.peer]) + task.send_duration;
    } else {
      before(pair, task.peer >= 0 ? 2 : 1, task.duration, remaining);
    }
  };
  if (remaining_known_ > count) {
    struct TailStep {
      const Task* task;  // or a collective
      const int* ranks;
      size_t n;
      Picoseconds duration;
    };
    std::vector<TailStep> steps;
    ForEachSyncTask([&](const Task& task, SyncPhase, int) { steps.push_back({&task}); },
                    [&](const std::vector<int>& ranks, Picoseconds duration, double) {
                      steps.push_back({nullptr, ranks.data(), ranks.size(), duration});
                    });
    Picoseconds* remaining = &remaining_[count * devices_];
    std::fill(remaining, remaining + devices_, 0);
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
      if (step->task != nullptr) {
        before_task(*step->task, remaining);
      } else {
        before(step->ranks, step->n, step->duration, remaining);
      }
    }
    remaining_known_ = count;
  }
  absl::InlinedVector<const Task*, 64> tasks;
  while (remaining_known_ > row) {
    const Picoseconds* after = &remaining_[remaining_known_ * devices_];
    --remaining_known_;
    Picoseconds* remaining = &remaining_[remaining_known_ * devices_];
    if (segments_[remaining_known_].has_matrix()) {
      segments_[remaining_known_].AdvanceBackward(devices_, after, remaining);
      continue;
    }
    std::copy(after, after + devices_, remaining);
    tasks.clear();
    for (int p = SegmentBegin(remaining_known_); p < SegmentEnd(remaining_known_); ++p) {
      ForEachTaskOf(p, [&tasks](const Task& task) { tasks.push_back(&task); });
    }
    for (auto task = tasks.rbegin(); task != tasks.rend(); ++task) before_task(**task, remaining);
  }
}

// Runs what follows the backward pass, from these clocks on.
Picoseconds Simulator::RunGradientSync(Picoseconds* clocks) {
  ForEachSyncTask([&](const Task& task, SyncPhase, int) { RunTask(task, clocks); },
                  [&](const std::vector<int>& ranks, Picoseconds duration, double) {
                    Picoseconds start = 0;
                    for (int device : ranks) start = std::max(start, clocks[device]);
                    for (int device : ranks) clocks[device] = start + duration;
                  });
  return *std::max_element(clocks, clocks + devices_);
}

// For hosts with CPU contention.
Picoseconds Simulator::ContendedTime() {
  contended_tasks_.clear();
  contended_collectives_.clear();
  const auto add = [this](const Task& task) { contended_tasks_.push_back(&task); };
  if (structure_.micro_batches > 1) {
    ForEachScheduled(
        [&](const TaskList& tasks, int) {
          for (const Task& task : tasks) add(task);
        },
        [&](int p, int micro_batch) {
          for (const Task& task : *position_tasks_[p]) add(task);
          for (const TaskList* tasks : AccumulationsOf(p, micro_batch)) {
            for (const Task& task : *tasks) add(task);
          }
        });
  } else {
    for (size_t p = 0; p < structure_.positions.size(); ++p) {
      ForEachTaskOf(static_cast<int>(p), add);
    }
  }
  ForEachSyncTask([&](const Task& task, SyncPhase, int) { add(task); },
                  [&](const std::vector<int>& ranks, Picoseconds duration, double) {
                    contended_collectives_.push_back({ranks[0], -1, ranks, duration});
                    add(contended_collectives_.back());
                  });
  return costs_.cpu_contention().Run(contended_tasks_, nullptr);
}

Picoseconds Simulator::FullTime() {
  if (costs_.cpu_contention().needed()) return ContendedTime();
  std::fill(scratch_.begin(), scratch_.end(), 0);
  if (structure_.micro_batches > 1) {
    RunMicroBatches(scratch_.data());
  } else {
    RunPositions(0, static_cast<int>(structure_.positions.size()), scratch_.data());
  }
  return RunGradientSync(scratch_.data());
}

Picoseconds Simulator::DeltaTime() {
  if (dirty_.empty() && !sync_dirty_) return time_;
  ExtendClocks(first_dirty_);
  const Picoseconds* from = &clocks_[first_dirty_ * devices_];
  std::copy(from, from + devices_, scratch_.begin());
  const int end = sync_dirty_ ? num_segments() : last_dirty_ + 1;
  for (int s = first_dirty_; s < end; ++s) {
    if (segment_stamp_[s] == stamp_) {
      RunPositions(SegmentBegin(s), SegmentEnd(s), scratch_.data());
    } else {
      Advance(s, scratch_.data());
    }
  }
  if (sync_dirty_) return RunGradientSync(scratch_.data());
  ExtendRemaining(end);
  Picoseconds time = 0;
  for (int d = 0; d < devices_; ++d) {
    time = std::max(time, scratch_[d] + remaining_[end * devices_ + d]);
  }
  return time;
}

std::vector<Simulator::Change> Simulator::AllOf(const Placement& placement) const {
  std::vector<Change> all;
  for (NodeId n : live_) all.emplace_back(n, placement[n]);
  return all;
}

absl::Status Simulator::CheckTimes() {
  double total = 0;
  const auto add = [&total](const Task& task) {
    total += static_cast<double>(task.duration) +
             static_cast<double>(std::max<Picoseconds>(task.send_duration, 0));
  };
  for (int p = 0; p < static_cast<int>(structure_.positions.size()); ++p) {
    ForEachTaskOf(p, add);
    if (structure_.micro_batches == 1) continue;
    for (const TaskList* tasks : AccumulationsOf(p, 1)) {
      for (const Task& task : *tasks) add(task);
    }
  }
  total *= structure_.micro_batches;
  ForEachSyncTask([&](const Task& task, SyncPhase, int) { add(task); },
                  [&](const std::vector<int>&, Picoseconds duration, double) {
                    total += static_cast<double>(duration);
                  });
  if (total <= static_cast<double>(kMaxStepPicoseconds)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a step's tasks take ", total * 1e-12, " seconds or more, all devices together; at most ",
      ToSeconds(kMaxStepPicoseconds),
      " can be planned: use a smaller batch, or see whether a rate of a device or link, or a time "
      "of the profile, lacks its unit"));
}

absl::Status Simulator::Reset(const Placement& placement) {
  if (absl::Status status = Rebuild(AllOf(placement), kNoLimit).status(); !status.ok())
    return status;
  if (absl::Status status = CheckTimes(); !status.ok()) return status;
  if (bounded_) FindSyncBusy(&new_sync_busy_);
  clocks_known_ = 0;
  remaining_known_ = num_segments() + 1;
  for (MaxPlusMatrix& segment : segments_) segment.Invalidate();
  time_ = FullTime();
  if (limited_) FindMemoryChanges();
  penalty_ = Penalty(kNoLimit);
  Accept();
  return absl::OkStatus();
}

absl::StatusOr<Picoseconds> Simulator::Propose(const std::vector<Change>& changes,
                                               Picoseconds limit) {
  Accept();
  old_time_ = time_;
  old_penalty_ = penalty_;
  old_busy_ = busy_;
  if (full_only_) {
    // Rebuilds task lists from scratch, too.
    Placement placement = placement_;
    for (const Change& change : changes) placement[change.first] = change.second;
    if (absl::Status status = Rebuild(AllOf(placement), kNoLimit).status(); !status.ok()) {
      return status;
    }
  } else {
    absl::StatusOr<bool> whole = Rebuild(changes, limit);
    if (!whole.ok()) return whole.status();
    if (!*whole) return limit;
  }
  const bool delta = !full_only_ && structure_.micro_batches == 1;
  if (bounded_) {
    if (sync_dirty_) FindSyncBusy(&new_sync_busy_);
    const Picoseconds least = BusiestDevice(sync_dirty_ ? new_sync_busy_ : sync_busy_);
    if (least >= limit) return least;
  }
  time_ = delta && !costs_.cpu_contention().needed() ? DeltaTime() : FullTime();
  if (!full_only_ && time_ >= limit) return time_;
  if (limited_) {
    // With ZeRO sharding, memory depends on more than what the changed values hold.
    if (delta && structure_.zero_stage == 0) {
      UpdateMemory();
    } else {
      FindMemoryChanges();
    }
  }
  penalty_ = Penalty(full_only_ ? kNoLimit : limit);
  return cost();
}

void Simulator::Accept() {
  clocks_known_ = std::min(clocks_known_, first_dirty_);
  remaining_known_ = std::max(remaining_known_, sync_dirty_ ? num_segments() + 1 : last_dirty_ + 1);
  for (int segment : dirty_) segments_[segment].Invalidate();
  memory_undo_.used = false;
  if (sync_dirty_) sync_busy_ = new_sync_busy_;
  for (size_t i = 0; i < busy_values_.size(); ++i) {
    std::copy_n(&new_busy_[i * devices_], devices_, &value_busy_[busy_values_[i] * devices_]);
  }
  ClearProposal();
}

void Simulator::Reject() {
  if (memory_undo_.used) RevertMemory();
  Flip();
  time_ = old_time_;
  penalty_ = old_penalty_;
  busy_ = old_busy_;
  ClearProposal();
}

void Simulator::ClearProposal() {
  undo_.Clear();
  touched_.clear();
  busy_values_.clear();
  new_busy_.clear();
  dirty_.clear();
  first_dirty_ = num_segments();
  last_dirty_ = -1;
  sync_dirty_ = false;
}

template <typename Run>
void Simulator::ForEachTask(Run run) {
  ForEachPosition([&](int p, int micro_batch) {
    ForEachTaskOf(p, run);
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
    for (const Task& task : update->gather) run(task);
  }
}

v1::Prediction Simulator::Predict() {
  std::vector<Picoseconds> compute(devices_, 0), communication(devices_, 0);
  double moved = 0;
  ForEachTask([&](const Task& task) {
    moved += task.bytes_moved;
    if (!task.group.empty()) {
      for (int device : task.group) communication[device] += task.duration;
    } else if (task.peer >= 0) {
      communication[task.device] += task.is_buffered() ? task.send_duration : task.duration;
      communication[task.peer] += task.duration;
    } else {
      compute[task.device] += task.duration;
    }
  });
  v1::Prediction prediction;
  prediction.set_step_seconds(ToSeconds(time_));
  prediction.set_compute_seconds(ToSeconds(*std::max_element(compute.begin(), compute.end())));
  prediction.set_communication_seconds(
      ToSeconds(*std::max_element(communication.begin(), communication.end())));
  prediction.set_bytes_moved(moved);
  for (int64_t bytes : EstimateMemory()) prediction.add_peak_bytes(bytes);
  return prediction;
}

Picoseconds Simulator::OverflowPenalty(int device, int64_t bytes) const {
  constexpr int64_t kPerMiB = 1'000'000'000;  // one millisecond
  // The sum over all devices can be added to a step.
  const Picoseconds most = kMaxStepPicoseconds / devices_;
  const Picoseconds price = std::min(bytes / (1 << 20) + 1, most / kPerMiB) * kPerMiB;
  if (!offload_penalty_) return price;
  // Must exceed the cost of offload on both small and large devices.
  constexpr double kPerMemory = 4;  // times the step's time
  const double part =
      static_cast<double>(bytes) / static_cast<double>(costs_.device(device).memory_bytes());
  const double offload = kPerMemory * part * static_cast<double>(time_);
  if (offload >= static_cast<double>(most)) return most;
  return std::max(price, static_cast<Picoseconds>(offload));
}

Picoseconds Simulator::Penalty(Picoseconds limit) {
  can_fit_ = true;
  if (!limited_) return 0;
  const auto over = [this](int d, int64_t bytes) {
    const int64_t memory = costs_.device(d).memory_bytes();
    return memory > 0 && bytes > memory ? bytes - memory : 0;
  };
  bool within = true;  // even if everything ever held were held at once
  for (int d = 0; d < devices_ && within; ++d) {
    within = over(d, kept_[d] + structure_.micro_batches * total_[d]) == 0;
  }
  if (within) return 0;
  const std::vector<int64_t> peak = PeakMemory();
  Picoseconds penalty = 0;
  for (int d = 0; d < devices_; ++d) {
    const int64_t bytes = over(d, peak[d]);
    if (bytes > 0 && (!offload_penalty_ || over(d, kept_[d]) > 0))
      penalty += OverflowPenalty(d, bytes);
  }
  can_fit_ = penalty == 0;
  return offload_penalty_ && penalty < limit - time_
             ? penalty + OffloadPenalty(peak, limit - penalty)
             : penalty;
}

}  // namespace espalier
