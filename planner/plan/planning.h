// One problem while it is being planned: its structure, costs and the placements under comparison.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/cost/analytic_cost.h"
#include "planner/parallel.h"
#include "planner/pcg/placement.h"
#include "planner/planner.h"
#include "planner/simulator/simulator.h"

namespace espalier {

// A placement with its prediction, memory as lowering lays it out.
struct Candidate {
  std::string name;
  Placement placement;
  v1::Prediction prediction;
  std::string refused;                    // why it cannot run; empty if it can
  bool lacks_memory = false;              // that is why; else no memory would help
  std::vector<v1::MemoryPlan> memory;  // by device; empty if all fits as it is
  int batch_tiles = 1;
};

// What of a plan is not said by the configurations of its operators.
struct StepConfig {
  int zero_stage = 0;
  int micro_batches = 1;
  int batch_tiles = 1;     // at least so many (MemoryOptions.max_batch_tiles)
  bool only_costs = false;  // see SplitBatchForCosts; not for plans
};

// Takes off `micro_batches`, the least first, those whose programs LowerPlan would not write, more
// than `most` instructions of at most `parts` parts of operators. The first stays: its plan can be
// looked at.
void DropTooLongPrograms(double parts, double most, std::vector<int>* micro_batches);

// Equal for devices that are the same but for the hosts that they stand in.
std::string DeviceClassOf(v1::Device device);
bool AllAlike(const Machine& machine);

class Planning {
 public:
  // Errors as MakePlan, and those of SplitIntoMicroBatches. `problem` must outlive this.
  static absl::StatusOr<std::unique_ptr<Planning>> Make(const PlanProblem& problem, int num_devices,
                                                        const v1::MemoryOptions& memory,
                                                        const StepConfig& shape);

  // The problem, where nobody else sees to it that it outlives this.
  void Keep(OwnProblem problem) { kept_ = std::move(problem); }

  // From here on the simulator believes that devices have `fraction` of their memory.
  void LimitMemory(double fraction);

  Placement FromConfigs(const std::vector<NodeConfig>& configs);
  Placement AllOn(int device);
  Placement DataParallelPlacement();
  // The first parameter axis (or reduction, where there is no other) of every operator that has one
  // over all devices, the rest as data parallel.
  Placement ParameterParallelPlacement();

  // Simulates and lowers (but for machines so large that programs would take too long to write:
  // there the memory is the simulator's estimate); a program that does not fit is made to, if the
  // options allow it, and what that costs is part of the prediction. Where nothing helps,
  // peak_bytes are those of the programs as they are.
  absl::StatusOr<Candidate> Evaluate(const std::string& name, const Placement& placement);

  // Has the simulator price memory at what Evaluate would do about it (Simulator::EnableOffloadPenalty),
  // where the options allow anything to be done, and `placement` is not so large that nothing would
  // be. Whether it does.
  bool PriceMemory(const Placement& placement, Simulator* simulator) const;

  // About how many all programs have: what evaluating takes grows with it.
  double Instructions(const Placement& placement) const;

  // Predicted seconds of a node, forward and backward, slowest part; of one micro-batch.
  double SecondsOf(NodeId node, const ConfigEntry* entry);

  // What the plan says of a placement.
  absl::StatusOr<v1::Plan> ToPlan(const Candidate& candidate);

  const PcgStructure& structure() const { return structure_; }
  ConfigTable& table() { return *table_; }
  CostTables& costs() { return *costs_; }
  const Machine& machine() const { return machine_; }
  int num_devices() const { return static_cast<int>(machine_.devices.size()); }

 private:
  explicit Planning(const PlanProblem& problem) : problem_(problem) {}

  absl::Status AddParallelOperators(const Placement& placement, v1::Plan* plan);
  // Of one parameter's gradient, and of what its update does to the parameter.
  absl::Status AddUpdateOperators(const Placement& placement,
                                  const PcgStructure::GradientInfo& gradient, v1::Plan* plan);
  // Appends what leads from one layout to the other; `bytes` of the whole edge, with the first.
  void AddOperatorsBetween(int from, int to, const std::string& tensor, const std::string& consumer,
                           double bytes, v1::Plan* plan);
  absl::StatusOr<double> BytesMoved(ValueId value, int from, int to);

  OwnProblem kept_;
  const PlanProblem& problem_;
  Machine machine_;  // the devices that may be used
  v1::Optimizer optimizer_;
  v1::MemoryOptions memory_;
  int batch_tiles_ = 1;
  PcgStructure structure_;
  AnalyticCost analytic_;
  std::unique_ptr<ConfigTable> table_;
  std::unique_ptr<CostTables> costs_;
};

}  // namespace espalier
