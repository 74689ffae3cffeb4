// Writes the programs of all devices, node by node in one order that all of them share: whatever
// two devices do together they meet in the same order, so they cannot wait for each other in a
// circle.
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
#include "planner/pcg/placement.h"
#include "planner/planner.h"

namespace espalier {

class Emitter {
 public:
  // All must outlive the emitter. With `batch_tiles` above 1, operators run in so many pieces of
  // their samples where they can (emit_batch_tiles.cc).
  Emitter(const PcgStructure& structure, const Placement& placement, ConfigTable& table,
          int num_ranks, const LoweringOptions& options, int batch_tiles = 1);

  // Forward and, unless structure.forward_only, backward, synchronisation and update. Errors are
  // Internal and name node and tensor.
  absl::Status Run();

  std::vector<RankProgram>& ranks() { return ranks_; }
  // The buffers that hold a named output of a serving graph, by shard of its base layout.
  const std::vector<int>& OutputBuffers(ValueId output) {
    return instances_.at({output, Resolved(structure_.base[output])});
  }
  // Whether anything runs in tiles.
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
  absl::Status RunPosition(const Position& position);
  // From here on everything is of this micro-batch.
  void SelectMicroBatch(int number);
  // Adds the parameters' gradients that `position` has computed to those of the first micro-batch.
  void AccumulateGradients(const Position& position);
  void EmitCompute(const Position& position, const std::vector<const Instance*>& operands);
  void EmitSumOrSeed(const Position& position, const std::vector<const Instance*>& operands);
  void EmitReports(const Node& node);
  // At the end of rank `rank`, in tiles where `position` allows it, else as it is.
  void EmitTiled(const Position& position, int rank, const std::string& node,
                  const v1::ComputeInstruction& whole);
  // Piece `tile` of the buffer, along dimension 0.
  int TileOf(int rank, int buffer, int tile);

  absl::StatusOr<const Instance*> Ensure(ValueId value, int layout, const std::string& node);
  // Forgets the copies of operands that each use makes anew, so that they need not stay in between.
  void DropGatheredCopies(const Position& position);
  const Instance& Load(ValueId value, int layout, const std::string& node);
  int LoadShard(ValueId value, const TensorSpec& spec, const std::string& node, RankProgram* rank);
  // Into the buffers that hold `value` in `target` already, or new ones.
  absl::Status Reshard(ValueId value, int base, int target, const std::string& node);
  void EmitCollective(ValueId value, const ReshardCollective& c, const Layout& from,
                      const Layout& to, const Instance& source, Instance* target, bool in_place,
                      const std::string& node);
  void EmitPiece(ValueId value, const ReshardPiece& piece, const Layout& from, const Layout& to,
                 const Instance& source, Instance* target, const std::string& node);
  // Whether nothing but one reshard reads `value` as it was produced.
  bool ReadOnceElsewhere(ValueId value, int base);

  absl::Status Synchronise();
  // Of the gradients that are ready behind `position` and need no other device.
  absl::Status UpdateEarly(int position);
  absl::Status UpdateParameters();
  absl::Status UpdateParameter(const PcgStructure::GradientInfo& g);
  // Where a parameter is stored whole but updated in pieces: takes the pieces, as views or copies,
  // and gathers what became of them.
  absl::Status TakeUpdateShards(const PcgStructure::GradientInfo& g);
  absl::Status GatherUpdateShards(const PcgStructure::GradientInfo& g);
  void DropCopies(const PcgStructure::GradientInfo& g);
  bool HasViews(const PcgStructure::GradientInfo& g);
  // Adds the penalty of a parameter to its gradient, and to the loss that is reported if asked for.
  absl::Status EmitPenalty(const PcgStructure::GradientInfo& g);
  // What the update of every shard of `parameter` waits for: sums over the parameter. By shard, in
  // order.
  absl::StatusOr<std::vector<std::vector<int>>> EmitSums(const PcgStructure::GradientInfo& g);
  // An update instruction of `op` for one shard, without its sums.
  v1::UpdateInstruction* EmitUpdate(const PcgStructure::GradientInfo& g, size_t shard,
                                       const std::string& op);
  // Sets factors_: the schedule, at first; then what clipping and loss scaling make of the norm of
  // all gradients, which is reported.
  void AddSchedules();
  void EmitFactors();
  // The sum of the gradients' squares, on each rank that has some of them or a loss scale.
  std::map<int, int> EmitSquares();

  bool scales_loss() const { return options_.optimizer.has_loss_scale(); }
  // The state of loss scaling on one device, and the factor that follows from it: written to
  // `output`, or to a scalar that all who ask get.
  int LossScaleState(int device);
  void EmitLossScale(int device, int output);
  int LossScale(int device);

  int Resolved(const LayoutRef& ref) {
    return espalier::Resolve(structure_, placement_, table_.layouts(), ref);
  }
  const Layout& LayoutOf(int id) { return table_.layouts().Get(id); }
  // In which a parameter is stored, and in which its update works.
  int StorageOf(const PcgStructure::GradientInfo& g) {
    return Resolved(structure_.base[g.parameter]);
  }
  int UpdateLayoutOf(const PcgStructure::GradientInfo& g) {
    return Resolved(structure_.slots[g.slot].required);
  }
  TensorSpec SpecOf(ValueId value, const Shard& shard) const;
  // "<parameter>.grad" for what an optimiser reads, else the name in the graph.
  const std::string& NameOf(ValueId value) const { return names_[value]; }
  int NewOutput(ValueId value, const Layout& layout, int shard);
  // A buffer that holds (a part of) `value` and is as long as it in dimension 0.
  int AddBuffer(RankProgram* rank, ValueId value, const std::string& name, const TensorSpec& spec,
                v1::BufferKind kind);
  const Node& PlanNode(const Position& position) const;

  const PcgStructure& structure_;
  const Placement& placement_;
  ConfigTable& table_;
  const LoweringOptions& options_;
  const int batch_tiles_;
  std::map<std::pair<int, int>, std::vector<int>> tiles_;  // of a rank's buffer
  UpdateChoice update_;                                     // unless forward_only
  std::vector<RankProgram> ranks_;
  std::vector<std::string> names_;  // by value
  using Instances = std::map<std::pair<ValueId, int>, Instance>;
  Instances instances_;                    // of the micro-batch
  std::vector<Instances> of_micro_batch_;  // of all others
  int micro_batch_ = 0;
  std::map<std::tuple<ValueId, int, Dims, Dims>, int> loaded_;
  std::map<ValueId, std::vector<BucketPlace>> bucket_of_;  // by shard of the gradient's base layout
  std::vector<BucketBuffers> buckets_;
  std::map<ValueId, std::vector<std::vector<int>>> states_;  // parameter -> shard -> buffers
  // What updates read besides the parameter's own: the factor of the gradients (-1: none), and the
  // learning rate and step. By rank.
  struct Factors {
    int scale = -1;
    int hyper = -1;
  };
  std::map<int, Factors> factors_;
  std::set<ValueId> updated_;                           // parameters
  std::map<int, int> loss_scale_states_, loss_scales_;  // by rank
  uint64_t next_tag_ = 1;
};

// Identity of a node for random numbers: the same on every shard and under every plan.
uint64_t NodeKey(const std::string& node_name);

}  // namespace espalier
