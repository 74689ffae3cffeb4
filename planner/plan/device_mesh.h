// Plans for many devices: a 3D mesh of pipeline, data and tensor parallelism.
//
// The devices form pipeline stages of equal size, each stage has `data` replicas, and each replica
// has `tensor` devices that share every operator. Stages are outermost and tensor-parallel devices
// innermost, so that devices that communicate most are adjacent, as in Megatron-LM (Narayanan et
// al., "Efficient large-scale language model training on GPU clusters using Megatron-LM", SC 2021).
// A search on one tensor-parallel group decides how it shares the operators; dynamic programming
// decides where stages begin. These are the two levels of Alpa (Zheng et al., OSDI 2022).
// Candidates are ranked by slowest stage x (micro-batches + stages - 1) plus gradient
// synchronization; the best are then simulated in full, on all devices.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/plan/planning.h"
#include "planner/search/search_space.h"

namespace espalier {

struct MeshShape {
  // How the devices of a replica share its operators.
  enum class Sharing {
    kTensorParallel,  // searched; samples stay whole
    kMixed,           // searched; samples may be split, too
    kMegatron,        // Megatron-LM's scheme (megatron_sharding.h)
  };
  int stages = 1;
  int data = 1;
  int tensor = 1;
  int micro_batches = 1;
  int zero_stage = 0;
  Sharing sharing = Sharing::kTensorParallel;
};

// "8 stages x 16 replicas x 8 parts, 32 micro-batches, ZeRO 1"
std::string ToString(const MeshShape& shape);

struct MeshPlan {
  MeshShape shape;
  std::unique_ptr<Planning> planning;
  Placement placement;
  Picoseconds cost = 0;  // simulated, including the memory penalty
  bool fits = false;     // as estimated; with EnableOffloadPenalty, if offload makes it fit
};

struct MeshEstimate {
  MeshShape shape;
  double seconds = 0;
  double bytes = 0;       // per device, approximate
  double kept_bytes = 0;  // of `bytes`: held during the whole step
};

class MeshPlanner {
 public:
  // A hand-written rule that replaces the search: how `tensor` devices share an operator, as a
  // configuration on devices 0 to tensor - 1.
  using Share = std::function<NodeConfig(const PcgStructure& structure, NodeId node, int tensor)>;

  // `problem` must outlive this. `space`: the axes that a group may split. `budget`: proposals of
  // each search within a group.
  MeshPlanner(const PlanProblem& problem, int num_devices, const v1::MemoryOptions& memory,
              const SpaceOptions& space, int64_t budget, Share share = nullptr);

  // From now on, memory beyond a device's limit costs the time that swaps and recomputation would
  // add, as far as they can free it (Planning::PriceMemory).
  void EnableOffloadPenalty(const OffloadSettings& settings) { offload_settings_ = settings; }

  // Returns the shapes that use all devices and divide the batch, at one ZeRO stage; several
  // pipeline stages only if the graph's batch can be cut. With `micro_batches` 0 it tries several
  // counts, up to the limit on program size.
  std::vector<MeshShape> Shapes(int zero_stage, int micro_batches);

  absl::StatusOr<MeshEstimate> Estimate(const MeshShape& shape);

  // Builds the plan and simulates it in full. Errors as Planning::Make.
  absl::StatusOr<MeshPlan> Make(const MeshShape& shape);

  // Makes plans in parallel (ForEachApart) and calls done(index, plan) on the thread that made
  // each. Skips shapes that have no recipe.
  void MakeEach(const std::vector<MeshShape>& shapes,
                const std::function<void(int, absl::StatusOr<MeshPlan>)>& done);

  // Searches the groups of all shapes in parallel; Estimate and Make search one at a time.
  void Prepare(const std::vector<MeshShape>& shapes);

  // Returns the fastest of `shapes`. Estimates all, makes the first `exact` that should fit (more
  // if none of them does) and half as many of those with Megatron sharding. Returns NotFound if no
  // shape can be made.
  absl::StatusOr<MeshPlan> Best(const std::vector<MeshShape>& shapes, int exact);

 private:
  // One micro-batch of one replica on a tensor-parallel group.
  struct Group {
    std::vector<double> seconds;   // by operator of the sequence
    std::vector<double> crossing;  // activation bytes in front of each operator
    std::vector<double> parameter_bytes;
    double kept_bytes = 0;        // parameters, per device
    double activation_bytes = 0;  // activations, per device
    double states = 0;            // optimizer states per parameter
  };

  using TemplateKey = std::pair<int, MeshShape::Sharing>;     // tensor
  using GroupKey = std::tuple<int, MeshShape::Sharing, int>;  // tensor, sharing, parts of the batch
  static TemplateKey TemplateOf(const MeshShape& shape) { return {shape.tensor, shape.sharing}; }
  static GroupKey GroupKeyOf(const MeshShape& shape) {
    return {shape.tensor, shape.sharing, shape.data * shape.micro_batches};
  }

  absl::StatusOr<const std::vector<NodeConfig>*> Template(const MeshShape& shape);
  absl::StatusOr<const Group*> GroupOf(const MeshShape& shape);
  // REQUIRES: the devices of `problem` have no memory limit.
  absl::StatusOr<Group> MakeGroup(const PlanProblem& problem, const MeshShape& shape) const;
  absl::StatusOr<std::vector<NodeConfig>> SearchGroup(const PlanProblem& problem,
                                                      const MeshShape& shape) const;
  // The pipeline stage of each operator of the sequence.
  absl::StatusOr<std::vector<int>> StageOfEach(const MeshShape& shape, double* slowest);
  // What a plan is made of, together with the problem.
  struct Recipe {
    MeshShape shape;
    std::vector<int> stage_of;
    const std::vector<NodeConfig>* configs = nullptr;
  };
  absl::StatusOr<Recipe> RecipeOf(const MeshShape& shape);
  absl::StatusOr<MeshPlan> MakeOf(const PlanProblem& problem, const Recipe& recipe) const;
  absl::StatusOr<std::unique_ptr<Planning>> PlanningOfGroup(const PlanProblem& problem, int tensor,
                                                            int parts) const;
  std::vector<MeshShape::Sharing> Sharings(int tensor) const;
  bool CanCut(int parts);
  absl::StatusOr<CostTables*> Costs();  // of all devices

  const PlanProblem& problem_;
  const int num_devices_;
  const v1::MemoryOptions memory_;
  const SpaceOptions space_;
  const int64_t budget_;
  const Share share_;
  std::optional<OffloadSettings> offload_settings_;
  PlanProblem group_problem_;  // devices without a limit of their memory
  // Holds the error where the search failed.
  std::map<TemplateKey, absl::StatusOr<std::vector<NodeConfig>>> templates_;
  std::map<GroupKey, absl::StatusOr<Group>> groups_;
  std::map<int, bool> can_cut_;
  std::unique_ptr<Planning> all_;  // supplies Costs()
};

}  // namespace espalier
