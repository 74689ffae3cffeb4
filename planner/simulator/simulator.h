// Predicts the time of one training step under a placement.
//
// The task graph is the program that lowering would write: forward, backward, changes of layout,
// synchronisation of gradients, clipping and updates, in the one order that all devices share. A
// device runs its tasks in that order and blocks in transfers and collectives until its partners
// are there, as the executor does; so a sweep in program order is the event-driven simulation of
// these queues.
//
// Updates that need nothing of other devices run as soon as they can, to free their gradients; here
// they are counted at the end, which is the same for the device itself.
//
// With micro-batches (pcg/micro_batches.h) the step is their schedule (pcg/schedule.h), always
// simulated whole.
//
// Delta simulation: a change of some nodes' configurations rebuilds only the task lists that depend
// on them, and the sweep starts at the first changed one. After the last changed one it stops as
// soon as all clocks differ from the old timeline by the same amount: the rest is the old timeline
// shifted by it. Times are integers, so the result is exactly that of a full simulation.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/pcg/buckets.h"
#include "planner/pcg/schedule.h"
#include "planner/report/timeline.h"
#include "planner/simulator/costs.h"

namespace espalier {

class Simulator {
 public:
  using Change = std::pair<NodeId, const ConfigEntry*>;

  // All must outlive this. `full_only`: Propose simulates from scratch; for checking.
  Simulator(const PcgStructure& structure, ConfigTable& table, CostTables& costs,
            bool full_only = false);

  // Starts over from `placement`.
  absl::Status Reset(const Placement& placement);

  // Simulates with these nodes changed; Accept or Reject must follow. Returns the step's time plus
  // the penalty of devices over their memory (1 ms per MiB).
  absl::StatusOr<Picoseconds> Propose(const std::vector<Change>& changes);
  void Accept();
  void Reject();

  Picoseconds time() const { return time_; }  // of the step, without the penalty
  Picoseconds cost() const { return time_ + penalty_; }
  const Placement& placement() const { return placement_; }

  // Estimated peak memory by device: an arena without fragmentation.
  std::vector<int64_t> EstimateMemory();

  // The current placement's step as it runs, with the bytes that each link carries (collectives
  // counted as rings) and the estimated memory. `memory_limits`, by device, are only shown.
  Timeline MakeTimeline(const std::vector<int64_t>& memory_limits);

  // Seconds and bytes of the current placement; peak_bytes as EstimateMemory.
  proto::Prediction Predict();

 private:
  struct Undo {
    std::vector<Change> placement;
    std::vector<std::pair<int, const ReshardTasks*>> slots;
    std::vector<std::pair<int, const TaskList*>> positions;
    std::vector<std::pair<int, const ReshardTasks*>> syncs;
    std::vector<std::pair<int, const UpdateTasks*>> updates;
    int first_row = 0;
    std::vector<Picoseconds> rows;
    Picoseconds time = 0, penalty = 0;
  };

  int Resolved(const LayoutRef& ref);
  int ElementBytes(ValueId v) const;
  absl::Status RebuildValue(ValueId v);
  void RebuildPosition(int p);
  void Touch(int position);
  absl::Status Rebuild(const std::vector<Change>& changes);
  void Sweep(int first, int last);
  // Sweep for more than one micro-batch: all of it, in the order of the schedule.
  void SweepMicroBatches();
  // Calls run(position, micro-batch) in the order of the step.
  template <typename Run>
  void ForEachPosition(Run run);
  void UpdateSchedule();
  // What adds the parameters' gradients of a position to those of earlier micro-batches.
  const std::vector<const TaskList*>& AccumulationsOf(int position, int micro_batch);
  void Tail();
  // Calls run(task, part, gradient) and all_reduce(ranks, duration, bytes of each) in order.
  enum class TailPart { kSync, kUpdate };
  template <typename RunTask, typename RunGroup>
  void PlayTail(RunTask run, RunGroup all_reduce);
  // Bytes that are kept all the time, by device; sets change_ to what changes at each moment (two
  // for each position: its operands change layout, then it runs; and one at the end).
  std::vector<int64_t> FindMemoryChanges();
  int64_t ChangeAt(int device, int moment, int micro_batch) const {
    return change_[device][moment] - (micro_batch > 0 ? gradient_change_[device][moment] : 0);
  }
  template <typename Run>
  void ForEachTask(Run run);  // all of the step, in order
  Picoseconds Penalty();

  const PcgStructure& structure_;
  ConfigTable& table_;
  CostTables& costs_;
  const bool full_only_;
  const int devices_;
  Placement placement_;

  std::vector<const ReshardTasks*> slot_tasks_;   // by slot; null: nothing to do
  std::vector<const TaskList*> position_tasks_;   // by position
  std::vector<const ReshardTasks*> sync_tasks_;   // by gradient; null: in place already
  std::vector<const UpdateTasks*> update_tasks_;  // by gradient
  std::vector<int> gradient_of_value_;            // index into structure.gradients or -1
  std::vector<int> gradient_of_parameter_;        // likewise
  std::vector<int> position_of_value_;            // that computes it, or -1
  std::vector<bool> is_view_;                     // shares the memory of an operand
  std::vector<int> last_use_;                     // by slot, views of the value included
  std::vector<Picoseconds> rows_;                 // clocks before each position and after the last
  Picoseconds time_ = 0;
  Picoseconds penalty_ = 0;
  bool limited_ = false;  // some device states its memory

  Undo undo_;
  int first_dirty_ = 0, last_dirty_ = 0;
  std::vector<int> value_stamp_, position_stamp_;
  int stamp_ = 0;
  GradientBuckets buckets_;
  std::vector<int> stages_;                            // by position; of schedule_
  std::vector<ScheduleItem> schedule_;                 // with micro-batches
  std::vector<const TaskList*> accumulations_;         // scratch of AccumulationsOf
  std::vector<bool> takes_part_;                       // scratch of PlayTail
  std::vector<int> norm_ranks_;                        // likewise
  std::vector<std::vector<int64_t>> change_;           // by device; see FindMemoryChanges
  std::vector<std::vector<int64_t>> gradient_change_;  // of it, what later micro-batches lack
};

}  // namespace espalier
