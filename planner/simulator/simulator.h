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
// With micro-batches (pcg/micro_batches.h) the step is their schedule (pcg/pipeline_schedule.h), always
// simulated whole; so are steps on hosts with too few cores (cpu_contention.h).
//
// Delta simulation: a change of some nodes' configurations rebuilds only the task lists that depend
// on them, and only segments of positions in which something has changed are swept; those between
// them are one step each (max_plus.h). What lies before the first one is known as the clocks with
// which it begins, what lies after the last one as the time from each device's clock to the end of
// the step along the longest chain of tasks that wait for each other (the critical path of Kelley
// and Walker, 1959). All that is kept for the accepted placement and brought up to date only as far
// as it is asked for. A proposal that only matters below a limit is left off as soon as the tasks
// of some device alone take as long, and its memory, counted from what changed values hold, is
// looked at last. Times are integers, so the result is exactly that of a full simulation.
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
#include "planner/memory/offload_recompute.h"
#include "planner/memory/offload_estimate.h"
#include "planner/pcg/gradient_buckets.h"
#include "planner/pcg/pipeline_schedule.h"
#include "planner/report/timeline.h"
#include "planner/simulator/max_plus.h"
#include "planner/simulator/cost_tables.h"

namespace espalier {

class Simulator {
 public:
  using Change = std::pair<NodeId, const ConfigEntry*>;

  // All must outlive this. `full_only`: Propose simulates from scratch; for checking.
  Simulator(const PcgStructure& structure, ConfigTable& table, CostTables& costs,
            bool full_only = false);

  // From the next Reset on a device over its memory costs what swaps and recomputation are
  // estimated to add to the step (planner/memory/offload_estimate.h), the slowest device's; what they cannot
  // free is as dear as without them, or dearer.
  void EnableOffloadPenalty(const OffloadSettings& settings);

  // Starts over from `placement`. InvalidArgument if its tasks take longer than can be counted, 46
  // days of all devices together.
  absl::Status Reset(const Placement& placement);

  static constexpr Picoseconds kNoLimit = std::numeric_limits<Picoseconds>::max();

  // Simulates with these nodes changed, each named once; Accept or Reject must follow. Returns the
  // step's time plus the penalty of devices over their memory (1 ms per MiB, or see EnableOffloadPenalty). A
  // cost of `limit` or more need not be exact; such a proposal must be rejected.
  absl::StatusOr<Picoseconds> Propose(const std::vector<Change>& changes,
                                      Picoseconds limit = kNoLimit);
  void Accept();
  void Reject();

  Picoseconds time() const { return time_; }  // of the step, without the penalty
  Picoseconds cost() const { return time_ + penalty_; }
  // Of the last Reset: nothing is over a device's memory that EnableOffloadPenalty could not free, as far as
  // is estimated.
  bool can_fit() const { return can_fit_; }
  const Placement& placement() const { return placement_; }

  // What follows is of the accepted placement: not while a proposal waits for Accept or Reject.

  // Estimated peak memory by device: an arena without fragmentation.
  std::vector<int64_t> EstimateMemory();

  // The current placement's step as it runs, with the bytes that each link carries (collectives
  // counted as rings) and the estimated memory. `memory_limits`, by device, are only shown.
  Timeline MakeTimeline(const std::vector<int64_t>& memory_limits);

  // By forward node: seconds of one micro-batch, forward and backward, with the changes of layout
  // that it needs, as if nothing else ran. Synchronisation and updates are left out.
  std::vector<double> SecondsByNode();

  // Seconds and bytes of the current placement; peak_bytes as EstimateMemory.
  v1::Prediction Predict();

 private:
  // What a proposal replaced. Flip exchanges it with what is in force.
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
  // The memory that a proposal has changed, as it was.
  struct MemoryUndo {
    bool used = false;
    std::vector<int> starts;
    std::vector<int64_t> kept, total;
    std::vector<std::pair<int64_t*, int64_t>> changes;  // and what was added to them
  };

  std::vector<Change> AllOf(const Placement& placement) const;
  absl::Status CheckTimes();  // of a placement: that they can be added up
  int Resolved(const LayoutRef& ref);
  int ElementBytes(ValueId v) const;
  absl::Status RebuildValue(ValueId v);
  void RebuildPosition(int p);
  void MarkDirty(int position);
  // True if it went through; false if it left off because the step will take `limit` or more.
  absl::StatusOr<bool> Rebuild(const std::vector<Change>& changes, Picoseconds limit);
  // The time for which these tasks hold each device.
  const Picoseconds* BusyOf(const TaskList& tasks);
  // Adds a row to busy_, or takes it away (sign -1).
  void AddRow(const Picoseconds* row, int sign);
  void CountValue(ValueId v);
  // What the step takes at least: no device ends before it has done all its tasks.
  Picoseconds BusiestDevice(const std::vector<Picoseconds>& sync) const;
  void FindSyncBusy(std::vector<Picoseconds>* busy);
  void Flip();
  void ClearProposal();
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
  // With micro-batches, in the order of their schedule: transfer(changes of layout, position), and
  // run(position, micro-batch) for what the position itself does.
  template <typename Transfer, typename Run>
  void ForEachScheduled(Transfer transfer, Run run);
  // RunPositions for more than one micro-batch, in the order of the schedule.
  void RunMicroBatches(Picoseconds* clocks);
  void UpdateSchedule();
  // What adds the parameters' gradients of a position to those of earlier micro-batches.
  const std::vector<const TaskList*>& AccumulationsOf(int position, int micro_batch);
  // Calls run(task, part, gradient) and all_reduce(ranks, duration, bytes of each) in order.
  enum class SyncPhase { kSync, kUpdate };
  template <typename RunTask, typename RunGroup>
  void ForEachSyncTask(RunTask run, RunGroup all_reduce);

  // Of each gradient that waits in a bucket: the point from which it is held; else -1.
  void FindGradientStarts(std::vector<int>* starts);
  // Adds what these values hold to kept_, change_ and total_, or takes it away (sign -1).
  void AddMemory(const std::vector<ValueId>& values, int64_t sign);
  // Bytes that are kept all the time, by device; sets change_ to what changes at each point (two
  // for each position: its operands change layout, then it runs; and one at the end).
  std::vector<int64_t> FindMemoryChanges();
  int64_t ChangeAt(int device, int point, int micro_batch) const {
    return change_[device][point] - (micro_batch > 0 ? gradient_change_[device][point] : 0);
  }
  void UpdateMemory();
  void RevertMemory();
  std::vector<int64_t> PeakMemory();
  // The points of a step in order, and their micro-batches: as memory changes.
  std::vector<std::pair<int, int>> ProgramPoints();
  template <typename Run>
  void ForEachTask(Run run);  // all of the step, in order
  // Exact below `limit` - time_.
  Picoseconds Penalty(Picoseconds limit);

  // What `bytes` over the memory of a device cost that nothing can free.
  Picoseconds PriceOf(int device, int64_t bytes) const;

  // offload_penalty.cc
  struct IdleValue;
  struct OffloadSteps;
  // Of the devices that EnableOffloadPenalty speaks of. Exact below `limit` - time_.
  Picoseconds OffloadPenalty(const std::vector<int64_t>& peak, Picoseconds limit);
  double SecondsOfPosition(int p);
  int64_t Workspace(int device);
  int LastUse(ValueId v, int layout) const;
  bool CanRecompute(ValueId v, int point, absl::InlinedVector<ValueId, 4>* from) const;
  void FindIdle(std::vector<IdleValue>* idle);
  void AddIdle(ValueId v, std::vector<IdleValue>* idle);
  OffloadEstimate OffloadEstimateOf(int device, const OffloadSteps& steps, const std::vector<IdleValue>& idle);

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
  std::vector<int> gradient_of_value_;      // index into structure.gradients or -1
  std::vector<int> gradient_of_parameter_;  // likewise
  std::vector<int> position_of_value_;      // that computes it, or -1
  std::vector<bool> is_view_;               // shares the memory of an operand
  std::vector<int> last_use_;               // by slot, views of the value included
  const int segment_length_;
  std::vector<MaxPlusMatrix> segments_;  // consecutive positions, of the accepted placement
  // Rows of one number by device; a row before each segment, the last one after the last segment.
  std::vector<Picoseconds> clocks_;  // of the accepted placement: rows up to clocks_known_
  std::vector<Picoseconds> remaining_;   // time to the end of the step: rows from remaining_known_ on
  int clocks_known_ = 0, remaining_known_ = 0;
  Picoseconds time_ = 0;
  Picoseconds penalty_ = 0;
  bool limited_ = false;  // some device states its memory
  bool can_fit_ = true;

  bool offload_penalty_ = false;  // see EnableOffloadPenalty
  OffloadSettings offload_settings_;
  std::vector<std::vector<int>> uses_of_slot_;  // points, those of views of the value included
  std::vector<ValueId> idle_values_;            // that may be unused for long
  std::vector<ValueId> root_;          // by value: whose memory it shares, itself if nobody's
  std::vector<int> narrow_positions_;  // of operators whose kernels need workspace

  Undo undo_;
  MemoryUndo memory_undo_;
  Picoseconds old_time_ = 0, old_penalty_ = 0;
  // Time for which tasks hold each device, of all positions and of the sync.
  std::vector<Picoseconds> busy_, sync_busy_;
  std::vector<Picoseconds> value_busy_;  // of each value's changes of layout: accepted rows
  std::vector<ValueId> busy_values_;     // of which the proposal has other rows, in new_busy_
  std::vector<Picoseconds> new_busy_;
  std::vector<Picoseconds> old_busy_, new_sync_busy_, no_sync_;
  absl::flat_hash_map<const TaskList*, std::vector<Picoseconds>> busy_of_;
  int first_dirty_ = 0, last_dirty_ = 0;  // segments
  std::vector<int> dirty_;                // segments
  bool sync_dirty_ = false;
  std::vector<ValueId> touched_;  // values of which some layout has changed
  std::vector<ValueId> values_;   // that may have to be rebuilt
  std::vector<int> node_stamp_, value_stamp_, position_stamp_, segment_stamp_;
  int stamp_ = 0;
  GradientBuckets buckets_;
  std::vector<ContentionModel::Group> reductions_;   // scratch of ForEachSyncTask
  std::vector<int> stages_;                     // by position; of schedule_
  std::vector<bool> crossing_;                  // by slot; see CrossStageSlots
  std::vector<ScheduleItem> schedule_;          // with micro-batches
  std::vector<const TaskList*> accumulations_;  // scratch of AccumulationsOf
  std::vector<Picoseconds> scratch_;            // one row
  std::vector<const Task*> contended_tasks_;       // scratch of ContendedTime
  std::deque<Task> contended_collectives_;         // likewise
  std::vector<bool> takes_part_;                // scratch of ForEachSyncTask
  std::vector<int> norm_ranks_;                 // likewise
  std::vector<int> starts_;                     // see FindGradientStarts
  std::vector<int64_t> kept_;                   // by device; see FindMemoryChanges
  std::vector<int64_t> total_;                // by device: of all that is ever held, besides kept_
  std::vector<std::vector<int64_t>> change_;  // by device; see FindMemoryChanges
  std::vector<std::vector<int64_t>> gradient_change_;  // of it, what later micro-batches lack
};

}  // namespace espalier
