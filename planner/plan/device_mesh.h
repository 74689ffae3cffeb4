// Plans for many devices: a grid of pipeline stages, replicas and parts.
//
// The devices form stages of equal size, each stage `data` replicas, each replica `tensor` devices
// that share every operator; stages are the outermost, parts the innermost, so that those that talk
// most are next to each other, as in Megatron-LM (Narayanan et al., "Efficient large-scale language
// model training on GPU clusters using Megatron-LM", SC 2021). How the devices of one replica share
// an operator is found by searching on such a group alone; where stages begin by dynamic
// programming: the two levels of Alpa (Zheng et al., OSDI 2022). Candidates are ranked by
// slowest stage x (micro-batches + stages - 1) plus the synchronisation of gradients; the first of
// them are then simulated whole, on all devices.
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
    kTensorParallel,        // searched; samples stay whole
    kMixed,        // searched; samples may be split, too
    kMegatron,  // as by hand (tensor_parallel.h)
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
  Picoseconds cost = 0;  // simulated; penalty for memory included
  bool fits = false;     // as estimated; with EnableOffloadPenalty, if it is made to
};

struct MeshEstimate {
  MeshShape shape;
  double seconds = 0;
  double bytes = 0;       // of a device, roughly
  double kept_bytes = 0;  // of them, what is there all the time
};

class MeshPlanner {
 public:
  // How `tensor` devices share an operator, by hand instead of by search: a configuration on
  // devices 0 to tensor - 1.
  using Share = std::function<NodeConfig(const PcgStructure& structure, NodeId node, int tensor)>;

  // `problem` must outlive this. `space`: which axes a group may split. `budget`: proposals of each
  // search within a group.
  MeshPlanner(const PlanProblem& problem, int num_devices, const v1::MemoryOptions& memory,
              const SpaceOptions& space, int64_t budget, Share share = nullptr);

  // From here on what plans need beyond a device's memory is priced at what swaps and recomputation
  // would add, as far as they help (Planning::PriceMemory).
  void EnableOffloadPenalty(const OffloadSettings& settings) { offload_settings_ = settings; }

  // Shapes that use all devices and divide the batch, at one ZeRO stage; several stages only of a
  // graph whose batch can be cut. `micro_batches` 0: several are tried, as many as programs can be
  // written for.
  std::vector<MeshShape> Shapes(int zero_stage, int micro_batches);

  absl::StatusOr<MeshEstimate> Estimate(const MeshShape& shape);

  // Simulated whole. Errors as Planning::Make.
  absl::StatusOr<MeshPlan> Make(const MeshShape& shape);

  // Makes them side by side (ForEachApart), but for those that no recipe is found for; calls
  // done(index, plan) on the thread that made it.
  void MakeEach(const std::vector<MeshShape>& shapes,
                const std::function<void(int, absl::StatusOr<MeshPlan>)>& done);

  // Searches the groups of all shapes side by side; Estimate and Make do so one by one.
  void Prepare(const std::vector<MeshShape>& shapes);

  // The fastest of `shapes`: estimates all, makes the first `exact` that should fit (more if none
  // of them does), and half as many of those that one would make by hand. NotFound if no shape can
  // be made.
  absl::StatusOr<MeshPlan> Best(const std::vector<MeshShape>& shapes, int exact);

 private:
  // What a group of devices makes of one micro-batch of one replica.
  struct Group {
    std::vector<double> seconds;   // by operator of the sequence
    std::vector<double> crossing;  // bytes, in front of each
    std::vector<double> parameter_bytes;
    double kept_bytes = 0;        // parameters, of a device
    double activation_bytes = 0;  // likewise
    double states = 0;            // optimiser states for each parameter
  };

  using TemplateKey = std::pair<int, MeshShape::Sharing>;     // tensor
  using GroupKey = std::tuple<int, MeshShape::Sharing, int>;  // and parts of the batch
  static TemplateKey TemplateOf(const MeshShape& shape) { return {shape.tensor, shape.sharing}; }
  static GroupKey GroupKeyOf(const MeshShape& shape) {
    return {shape.tensor, shape.sharing, shape.data * shape.micro_batches};
  }

  absl::StatusOr<const std::vector<NodeConfig>*> Template(const MeshShape& shape);
  absl::StatusOr<const Group*> GroupOf(const MeshShape& shape);
  // These two of a problem whose devices have no limit of their memory.
  absl::StatusOr<Group> MakeGroup(const PlanProblem& problem, const MeshShape& shape) const;
  absl::StatusOr<std::vector<NodeConfig>> SearchGroup(const PlanProblem& problem,
                                                      const MeshShape& shape) const;
  // Which stage each operator of the sequence is in.
  absl::StatusOr<std::vector<int>> StageOfEach(const MeshShape& shape, double* slowest);
  // What a plan is made of besides the problem.
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
  // An error where there is none.
  std::map<TemplateKey, absl::StatusOr<std::vector<NodeConfig>>> templates_;
  std::map<GroupKey, absl::StatusOr<Group>> groups_;
  std::map<int, bool> can_cut_;
  std::unique_ptr<Planning> all_;  // for its costs
};

}  // namespace espalier
