// Predicts the time of one training step under a placement.
//
// The task graph is the program that lowering would write: forward, backward, resharding, gradient
// synchronization, clipping and updates, in the one order that all devices share. A device runs its
// tasks in that order and blocks in transfers and collectives until its partners arrive, as the
// executor does. A sweep in program order is therefore an event-driven simulation of these queues.
//
// Updates that need no other device run as early as they can, to free their gradients. They are
// counted at the end, which gives the same time for the device.
//
// With micro-batches (pcg/micro_batches.h) the step follows the pipeline schedule
// (pcg/pipeline_schedule.h). Such steps, and steps on hosts with too few cores (cpu_contention.h),
// are always simulated in full.
//
// Delta simulation: changing the configurations of some nodes rebuilds only the task lists that
// depend on them and sweeps only the segments of positions with changes; each unchanged segment is
// one max-plus product (max_plus.h). The clocks at the first changed segment are known. After the
// last one, so is the time from each device's clock to the end of the step along the longest chain
// of dependent tasks (the critical path of Kelley and Walker, 1959). Both are kept for the accepted
// placement and extended on demand. With a limit, a proposal is abandoned as soon as some device's
// tasks alone reach it; memory is checked last, from the values that changed. Times are integers,
// so the result equals that of a full simulation.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/memory/offload_estimate.h"
#include "planner/memory/offload_recompute.h"
#include "planner/pcg/gradient_buckets.h"
#include "planner/pcg/pipeline_schedule.h"
#include "planner/report/timeline.h"
#include "planner/simulator/cost_tables.h"
#include "planner/simulator/max_plus.h"

namespace espalier {

class Simulator {
 public:
  using Change = std::pair<NodeId, const ConfigEntry*>;

  // All arguments must outlive this. `full_only`: Propose simulates from scratch; for tests.
  Simulator(const PcgStructure& structure, ConfigTable& table, CostTables& costs,
            bool full_only = false);

  // From the next Reset on, the penalty of devices over their memory is what swaps and
  // recomputation are estimated to add to the step of the slowest device
  // (planner/memory/offload_estimate.h). What they cannot free costs at least the default penalty.
  void EnableOffloadPenalty(const OffloadSettings& settings);

  // Starts from `placement`. Returns InvalidArgument if its tasks take longer than times can hold:
  // 46 days, summed over all devices.
  absl::Status Reset(const Placement& placement);

  static constexpr Picoseconds kNoLimit = std::numeric_limits<Picoseconds>::max();

  // Simulates with these nodes changed, each named once. Returns the step's time plus the penalty
  // of devices over their memory (1 ms per MiB; see EnableOffloadPenalty). A cost of `limit` or
  // more may be inexact; such a proposal must be rejected. The caller must call Accept or Reject
  // next.
  absl::StatusOr<Picoseconds> Propose(const std::vector<Change>& changes,
                                      Picoseconds limit = kNoLimit);
  void Accept();
  void Reject();

  Picoseconds time() const { return time_; }  // of the step, without the penalty
  Picoseconds cost() const { return time_ + penalty_; }
  // False if the last Reset's placement exceeds a device's memory by more than EnableOffloadPenalty
  // is estimated to free.
  bool can_fit() const { return can_fit_; }
  const Placement& placement() const { return placement_; }

  // The methods below describe the accepted placement. REQUIRES: no proposal is pending.

  // Returns the estimated peak memory by device, without fragmentation.
  std::vector<int64_t> EstimateMemory();

  // Returns the timeline of the step, with the bytes on each link (collectives counted as rings)
  // and the estimated memory. `memory_limits`, by device, are only displayed.
  Timeline MakeTimeline(const std::vector<int64_t>& memory_limits);

  // Returns, by forward node, the seconds of one micro-batch, forward and backward, with the
  // resharding that the node needs, as if nothing else ran. Excludes synchronization and updates.
  std::vector<double> SecondsByNode();

  // Returns seconds and bytes; peak_bytes as EstimateMemory.
  v1::Prediction Predict();

 private:
  // The state that a proposal replaced. Flip exchanges it with the current state.
  struct Undo {
    std::vector<Change> placement;
    std::vector<std::pair<ValueId, int>> bases;
    std::vector<std::pair<int, int>> layouts;
    std::vector<std::pair<int, const ReshardTasks*>> slots;
    std::vector<std::pair<int, const TaskList*>> positions;
    std::vector<std::pair<int, const ReshardTasks*>> syncs;
    std::vector<std::pair<int, const UpdateTasks*>> updates;
    void Clear();
  };
  // The memory state before the proposal.
  struct MemoryUndo {
    bool used = false;
    std::vector<int> starts;
    std::vector<int64_t> kept, total;
    std::vector<std::pair<int64_t*, int64_t>> changes;  // and what was added to them
  };

  std::vector<Change> AllOf(const Placement& placement) const;
  absl::Status CheckTimes();  // that the times of a placement can be added up
  void ClearProposal();

  // rebuild.cc
  int Resolved(const LayoutRef& ref);
  int ElementBytes(ValueId v) const;
  absl::Status RebuildValue(ValueId v);
  void RebuildPosition(int p);
  void MarkDirty(int position);
  // Returns false if it stopped because the step will take `limit` or more.
  absl::StatusOr<bool> Rebuild(const std::vector<Change>& changes, Picoseconds limit);
  // Returns the time for which these tasks occupy each device.
  const Picoseconds* BusyOf(const TaskList& tasks);
  // Adds a row to busy_, or subtracts it (sign -1).
  void AddRow(const Picoseconds* row, int sign);
  void CountValue(ValueId v);
  // Lower bound of the step's time: no device ends before it has run all its tasks.
  Picoseconds BusiestDevice(const std::vector<Picoseconds>& sync) const;
  void FindSyncBusy(std::vector<Picoseconds>* busy);
  void Flip();

  // sweep.cc
  template <typename Run>
  void ForEachTaskOf(int p, Run run) const;
  void RunPositions(int begin, int end, Picoseconds* clocks) const;
  int SegmentBegin(int segment) const { return segment * segment_length_; }
  int SegmentEnd(int segment) const;
  int num_segments() const { return static_cast<int>(segments_.size()); }
  void Advance(int segment, Picoseconds* clocks);
  void ExtendClocks(int row);
  void ExtendRemaining(int row);
  Picoseconds DeltaTime();
  Picoseconds FullTime();
  Picoseconds ContendedTime();
  Picoseconds RunGradientSync(Picoseconds* clocks);

  // Calls run(position, micro-batch) in the order of the step.
  template <typename Run>
  void ForEachPosition(Run run);
  // With micro-batches, in the order of the schedule: calls transfer(resharding tasks, position),
  // and run(position, micro-batch) for the position's own work.
  template <typename Transfer, typename Run>
  void ForEachScheduled(Transfer transfer, Run run);
  // RunPositions for several micro-batches, in the order of the schedule.
  void RunMicroBatches(Picoseconds* clocks);
  void UpdateSchedule();
  // Tasks that add a position's parameter gradients to those of earlier micro-batches.
  const std::vector<const TaskList*>& AccumulationsOf(int position, int micro_batch);
  // Calls run(task, phase, gradient) and all_reduce(ranks, duration, bytes per rank) in order.
  enum class SyncPhase { kSync, kUpdate };
  template <typename RunTask, typename RunGroup>
  void ForEachSyncTask(RunTask run, RunGroup all_reduce);

  // By gradient: the program point from which its bucket holds it; -1 if it is in no bucket.
  void FindGradientStarts(std::vector<int>* starts);
  // Adds the memory of these values to kept_, change_ and total_, or subtracts it (sign -1).
  void AddMemory(const std::vector<ValueId>& values, int64_t sign);
  // Returns the bytes held throughout the step, by device, and sets change_ to the change at each
  // program point: two per position (its operands are resharded; it runs) and one at the end.
  std::vector<int64_t> FindMemoryChanges();
  int64_t ChangeAt(int device, int point, int micro_batch) const {
    return change_[device][point] - (micro_batch > 0 ? gradient_change_[device][point] : 0);
  }
  void UpdateMemory();
  void RevertMemory();
  std::vector<int64_t> PeakMemory();
  // The program points of a step in order, with their micro-batches.
  std::vector<std::pair<int, int>> ProgramPoints();
  template <typename Run>
  void ForEachTask(Run run);  // all tasks of the step, in order
  // Exact below `limit` - time_.
  Picoseconds Penalty(Picoseconds limit);

  // Penalty for `bytes` over a device's memory that nothing can free.
  Picoseconds OverflowPenalty(int device, int64_t bytes) const;

  // offload_penalty.cc
  struct IdleValue;
  struct OffloadSteps;
  // The slowest device's estimated offload time, plus OverflowPenalty for bytes that it cannot
  // free. Exact below `limit` - time_.
  Picoseconds OffloadPenalty(const std::vector<int64_t>& peak, Picoseconds limit);
  double SecondsOfPosition(int p);
  int64_t Workspace(int device);
  int LastUse(ValueId v, int layout) const;
  bool CanRecompute(ValueId v, int point, absl::InlinedVector<ValueId, 4>* from) const;
  void FindIdle(std::vector<IdleValue>* idle);
  void AddIdle(ValueId v, std::vector<IdleValue>* idle);
  OffloadEstimate OffloadEstimateOf(int device, const OffloadSteps& steps,
                                    const std::vector<IdleValue>& idle);

  const PcgStructure& structure_;
  ConfigTable& table_;
  CostTables& costs_;
  const bool full_only_;
  const int devices_;
  const bool bounded_;  // busy times are known
  const std::vector<NodeId> live_;
  Placement placement_;

  std::vector<int> base_layout_;                  // by value
  std::vector<int> slot_layout_;                  // by slot: what it requires
  std::vector<const ReshardTasks*> slot_tasks_;   // by slot; null: nothing to do
  std::vector<const TaskList*> position_tasks_;   // by position
  std::vector<const ReshardTasks*> sync_tasks_;   // by gradient; null: in place already
  std::vector<const UpdateTasks*> update_tasks_;  // by gradient
  std::vector<ValueId> all_values_;
  std::vector<int> gradient_of_value_;      // index into structure.gradients, or -1
  std::vector<int> gradient_of_parameter_;  // index into structure.gradients, or -1
  std::vector<int> position_of_value_;      // that computes it, or -1
  std::vector<bool> is_view_;               // shares the memory of an operand
  std::vector<int> last_use_;               // by slot, views of the value included
  const int segment_length_;
  std::vector<MaxPlusMatrix> segments_;  // consecutive positions, of the accepted placement
  // Rows with one number per device: a row before each segment, and one after the last.
  std::vector<Picoseconds> clocks_;  // of the accepted placement: rows up to clocks_known_
  std::vector<Picoseconds>
      remaining_;  // time to the end of the step: rows from remaining_known_ on
  int clocks_known_ = 0, remaining_known_ = 0;
  Picoseconds time_ = 0;
  Picoseconds penalty_ = 0;
  bool limited_ = false;  // some device has a known memory size
  bool can_fit_ = true;

  bool offload_penalty_ = false;  // see EnableOffloadPenalty
  OffloadSettings offload_settings_;
  // program points, including uses of views of the value
  std::vector<std::vector<int>> uses_of_slot_;
  std::vector<ValueId> idle_values_;   // that may be idle for long
  std::vector<ValueId> root_;          // by value: the value whose memory it shares, or itself
  std::vector<int> narrow_positions_;  // positions whose kernels need workspace

  Undo undo_;
  MemoryUndo memory_undo_;
  Picoseconds old_time_ = 0, old_penalty_ = 0;
  // Time for which tasks occupy each device: of all positions; of synchronization and updates.
  std::vector<Picoseconds> busy_, sync_busy_;
  std::vector<Picoseconds> value_busy_;  // resharding time of each value: accepted rows
  std::vector<ValueId> busy_values_;     // values whose rows the proposal replaces by new_busy_
  std::vector<Picoseconds> new_busy_;
  std::vector<Picoseconds> old_busy_, new_sync_busy_, no_sync_;
  absl::flat_hash_map<const TaskList*, std::vector<Picoseconds>> busy_of_;
  int first_dirty_ = 0, last_dirty_ = 0;  // segments
  std::vector<int> dirty_;                // segments
  bool sync_dirty_ = false;
  std::vector<ValueId> touched_;  // values with a changed layout
  std::vector<ValueId> values_;   // values that may need rebuilding
  std::vector<int> node_stamp_, value_stamp_, position_stamp_, segment_stamp_;
  int stamp_ = 0;
  GradientBuckets buckets_;
  std::vector<ContentionModel::Group> reductions_;  // scratch of ForEachSyncTask
  std::vector<int> stages_;                         // by position; of schedule_
  std::vector<bool> crossing_;                      // by slot; see CrossStageSlots
  std::vector<ScheduleItem> schedule_;              // with micro-batches
  std::vector<const TaskList*> accumulations_;      // scratch of AccumulationsOf
  std::vector<Picoseconds> scratch_;                // one row
  std::vector<const Task*> contended_tasks_;        // scratch of ContendedTime
  std::deque<Task> contended_collectives_;          // scratch of ContendedTime
  std::vector<bool> takes_part_;                    // scratch of ForEachSyncTask
  std::vector<int> norm_ranks_;                     // scratch of ForEachSyncTask
  std::vector<int> starts_;                         // see FindGradientStarts
  std::vector<int64_t> kept_;                       // by device; see FindMemoryChanges
  std::vector<int64_t> total_;                      // by device: everything ever held, except kept_
  std::vector<std::vector<int64_t>> change_;        // by device; see FindMemoryChanges
  // the part of change_ that later micro-batches lack
  std::vector<std::vector<int64_t>> gradient_change_;
};

}  // namespace espalier
