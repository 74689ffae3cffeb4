// Writes the programs of all devices, node by node in one global order. Devices meet in every
// transfer and collective in the same order, so they cannot deadlock.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ops/optimizer/optimizer.h"
#include "planner/lowering/rank_program.h"
#include "planner/pcg/pipeline_schedule.h"
#include "planner/pcg/placement.h"
#include "planner/planner.h"

namespace espalier {

class Emitter {
 public:
  // All arguments must outlive the emitter. With `batch_tiles` above 1, operators run in that many
  // tiles of their samples where possible (emit_batch_tiles.cc). With `passes_apart`, a training
  // program is that of a session (emit_passes.cc).
  Emitter(const PcgStructure& structure, const Placement& placement, ConfigTable& table,
          int num_ranks, const LoweringOptions& options, int batch_tiles = 1,
          bool passes_apart = false);

  // Emits forward and, unless structure.forward_only, backward, gradient synchronization and
  // updates. Errors are Internal and name node and tensor.
  absl::Status Run();

  std::vector<RankProgram>& ranks() { return ranks_; }
  // Returns the buffers that hold a named output of a serving graph, by shard of its base layout.
  const std::vector<int>& OutputBuffers(ValueId output) {
    return instances_.at({output, Resolved(structure_.base[output])});
  }
  // Whether any operator runs in tiles.
  bool tiled() const { return !tiles_.empty(); }

 private:
  // The buffers that hold one value in one layout, by shard.
  using Instance = std::vector<int>;

  struct BucketPlace {
    int bucket = -1;
    int64_t offset = 0;
  };
  struct BucketBuffers {
    std::vector<int> ranks;
    std::vector<int> allocations;  // by position in ranks
    std::vector<int> buffers;
    std::vector<std::pair<ValueId, int>> members;  // gradient, collective within its reshard
  };

  void AddParameters();
  absl::Status PlanBuckets();
  absl::Status RunItem(const ScheduleItem& item, const std::vector<bool>& crossing);
  absl::Status RunPosition(const Position& position);
  // With passes_apart: the passes of a session, one after the other.
  absl::Status RunPassesApart(const std::vector<ScheduleItem>& schedule,
                              const std::vector<bool>& crossing);
  // Keeps structure.outputs of a training or evaluation program to its end.
  absl::Status KeepResults();
  void AddGradientSums();
  // Copies the gradients into their sums, or adds them.
  void SumGradients(bool accumulate);
  void MarkAll();
  // Makes `number` the current micro-batch.
  void SelectMicroBatch(int number);
  // Adds the parameter gradients computed by `position` to those of the first micro-batch.
  void AccumulateGradients(const Position& position);
  void EmitCompute(const Position& position, const std::vector<const Instance*>& operands);
  void EmitSumOrSeed(const Position& position, const std::vector<const Instance*>& operands);
  void EmitReports(const Node& node);
  // Emits `whole` at the end of rank `rank`, in tiles if `position` allows it.
  void EmitTiled(const Position& position, int rank, const std::string& node,
                 const v1::ComputeInstruction& whole);
  // Returns tile `tile` of the buffer, along dimension 0.
  int TileOf(int rank, int buffer, int tile);

  absl::StatusOr<const Instance*> Ensure(ValueId value, int layout, const std::string& node);
  // Drops the gathered copies of operands that each use gathers anew, to free their memory.
  void DropGatheredCopies(const Position& position);
  const Instance& Load(ValueId value, int layout, const std::string& node);
  int LoadShard(ValueId value, const TensorSpec& spec, const std::string& node, RankProgram* rank);
  // Reshards into the existing buffers of `value` in layout `target`, or new ones.
  absl::Status Reshard(ValueId value, int base, int target, const std::string& node);
  void EmitCollective(ValueId value, const ReshardCollective& c, const Layout& from,
                      const Layout& to, const Instance& source, Instance* target, bool in_place,
                      const std::string& node);
  void EmitPiece(ValueId value, const ReshardPiece& piece, const Layout& from, const Layout& to,
                 const Instance& source, Instance* target, const std::string& node);
  // Whether one reshard is the only reader of `value` as it was produced.
  bool ReadOnceElsewhere(ValueId value, int base);

  absl::Status SyncGradients();
  // Updates the parameters whose gradients are ready after `position` and need no other device.
  absl::Status UpdateEarly(int position);
  absl::Status UpdateParameters();
  absl::Status UpdateParameter(const PcgStructure::GradientInfo& g);
  // For a parameter that is stored whole but updated in shards: takes the shards, as views or
  // copies, and gathers the updated shards afterwards.
  absl::Status TakeUpdateShards(const PcgStructure::GradientInfo& g);
  absl::Status GatherUpdateShards(const PcgStructure::GradientInfo& g);
  void DropCopies(const PcgStructure::GradientInfo& g);
  bool HasViews(const PcgStructure::GradientInfo& g);
  // Adds a parameter's penalty to its gradient and, if requested, to the reported loss.
  absl::Status EmitPenalty(const PcgStructure::GradientInfo& g);
  // Emits the sums over the parameter that its update needs. Returns their buffers by shard, in
  // order.
  absl::StatusOr<std::vector<std::vector<int>>> EmitSums(const PcgStructure::GradientInfo& g);
  // Emits an update instruction of `op` for one shard, without its sums.
  v1::UpdateInstruction* EmitUpdate(const PcgStructure::GradientInfo& g, size_t shard,
                                    const std::string& op);
  // Returns the buffer of learning rate and step for updates whose rate is `scale` of the
  // schedule's.
  int Hyper(int device, double scale);
  // Set factors_: AddSchedules the learning-rate schedule; EmitFactors what clipping and loss
  // scaling derive from the norm of all gradients, which is reported.
  void AddSchedules();
  void EmitFactors();
  // Emits the sum of the gradients' squares on each rank that has gradients or a loss scale.
  std::map<int, int> EmitSquares();

  bool scales_loss() const { return options_.optimizer.has_loss_scale(); }
  // LossScaleState: the loss-scaling state on one device. EmitLossScale writes the factor derived
  // from it to `output`; LossScale returns a scalar that all readers on the device share.
  int LossScaleState(int device);
  void EmitLossScale(int device, int output);
  int LossScale(int device);

  int Resolved(const LayoutRef& ref) {
    return espalier::Resolve(structure_, placement_, table_.layouts(), ref);
  }
  const Layout& LayoutOf(int id) { return table_.layouts().Get(id); }
  // The layouts in which a parameter is stored and in which its update works.
  int StorageOf(const PcgStructure::GradientInfo& g) {
    return Resolved(structure_.base[g.parameter]);
  }
  int UpdateLayoutOf(const PcgStructure::GradientInfo& g) {
    return Resolved(structure_.slots[g.slot].required);
  }
  TensorSpec SpecOf(ValueId value, const Shard& shard) const;
  // "<parameter>.grad" for a gradient that an optimizer reads, otherwise the name in the graph.
  const std::string& NameOf(ValueId value) const { return names_[value]; }
  int NewOutput(ValueId value, const Layout& layout, int shard);
  // Whether a shard of this layout is not yet a part of the whole batch's value
  // (Buffer.partial_sum).
  bool IsPartialSum(ValueId value, const Layout& layout) const;
  // Adds a buffer for (a part of) `value` with its length in dimension 0.
  int AddBuffer(RankProgram* rank, ValueId value, const std::string& name, const TensorSpec& spec,
                v1::BufferKind kind);
  const Node& PlanNode(const Position& position) const;

  const PcgStructure& structure_;
  const Placement& placement_;
  ConfigTable& table_;
  const LoweringOptions& options_;
  const int batch_tiles_;
  const bool passes_apart_;
  std::map<std::pair<int, int>, std::vector<int>> tiles_;  // by rank and buffer
  std::map<ValueId, Instance> gradient_sums_;              // by gradient; with passes_apart
  UpdateChoice update_;                                    // unless forward_only
  std::vector<RankProgram> ranks_;
  std::vector<std::string> names_;  // by value
  using Instances = std::map<std::pair<ValueId, int>, Instance>;
  Instances instances_;                    // of the current micro-batch
  std::vector<Instances> of_micro_batch_;  // of the other micro-batches
  int micro_batch_ = 0;
  std::map<std::tuple<ValueId, int, Dims, Dims>, int> loaded_;
  std::map<ValueId, std::vector<BucketPlace>> bucket_of_;  // by shard of the gradient's base layout
  std::vector<BucketBuffers> buckets_;
  std::map<ValueId, std::vector<std::vector<int>>> states_;  // parameter -> shard -> buffers
  // What updates read beyond the parameter's own data: the gradients' factor (-1: none), and the
  // learning rate and step. By rank.
  struct Factors {
    int scale = -1;
    int hyper = -1;
  };
  std::map<int, Factors> factors_;
  std::map<std::pair<int, double>, int> scaled_schedules_;  // by rank and factor
  std::set<ValueId> updated_;                               // parameters
  std::map<int, int> loss_scale_states_, loss_scales_;      // by rank
  uint64_t next_tag_ = 1;
};

// Identity of a node for random numbers: the same on every shard and under every plan.
uint64_t NodeKey(const std::string& node_name);

}  // namespace espalier
