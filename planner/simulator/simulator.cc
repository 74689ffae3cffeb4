#include "planner/simulator/simulator.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "planner/simulator/gradient_sync.h"
#include "planner/simulator/schedule.h"

namespace espalier {
namespace {

// Positions per segment: about where matrices over the devices begin to pay off.
int SegmentLength(int devices) { return std::clamp(devices / 2, 4, 32); }

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
