// State of one planning problem: graph structure, costs and the candidate placements.
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

// A placement with its predicted time and memory, as lowered.
struct Candidate {
  std::string name;
  Placement placement;
  v1::Prediction prediction;
  std::string refused;        // why it cannot run; empty if it can
  bool lacks_memory = false;  // the reason for `refused`; otherwise more memory would not help
  std::vector<v1::MemoryPlan> memory;  // by device; empty if everything fits without swaps
  int batch_tiles = 1;
};

// What of a plan the configurations of its operators do not say.
struct StepConfig {
  int zero_stage = 0;
  int micro_batches = 1;
  int batch_tiles = 1;      // at least that many (MemoryOptions.max_batch_tiles)
  bool only_costs = false;  // only for costs, not for plans (SplitBatchForCosts)
};

// Removes from `micro_batches`, smallest first, the counts whose programs LowerPlan would refuse
// because they exceed `most` instructions in total; `parts` bounds the operator shards of one
// micro-batch. Always keeps the first, so that its plan can be inspected.
void DropTooLongPrograms(double parts, double most, std::vector<int>* micro_batches);

// A key that is equal for devices that differ in their host alone.
std::string DeviceClassOf(v1::Device device);
bool AllDevicesEqual(const Machine& machine);

class Planning {
 public:
  // Errors as MakePlan and SplitIntoMicroBatches. `problem` must outlive this.
  static absl::StatusOr<std::unique_ptr<Planning>> Make(const PlanProblem& problem, int num_devices,
                                                        const v1::MemoryOptions& memory,
                                                        const StepConfig& shape);

  // Takes ownership of the problem if no caller keeps it alive.
  void Keep(OwnProblem problem) { kept_ = std::move(problem); }

  // From now on the simulator assumes that devices have `fraction` of their memory.
  void LimitMemory(double fraction);

  Placement FromConfigs(const std::vector<NodeConfig>& configs);
  Placement AllOn(int device);
  Placement DataParallelPlacement();
  // Splits every operator along its first parameter axis (or reduction axis if it has none) over
  // all devices; operators with neither are data parallel.
  Placement ParameterParallelPlacement();

  // Simulates and lowers the placement. On machines too large for programs to be written, memory is
  // the simulator's estimate instead. If a program does not fit and the options allow it, adds
  // offload and includes its cost in the prediction. If nothing makes it fit, peak_bytes are those
  // of the unmodified programs. Kernels' workspace counts where the problem's query knows it.
  absl::StatusOr<Candidate> Evaluate(const std::string& name, const Placement& placement);

  // Makes the simulator charge for memory what Evaluate's offload would cost
  // (Simulator::EnableOffloadPenalty). Returns false, and does nothing, if the options allow no
  // offload or `placement` is too large for it.
  bool PriceMemory(const Placement& placement, Simulator* simulator) const;

  // Estimated instructions of all programs; the time of Evaluate grows with it.
  double Instructions(const Placement& placement) const;

  // Predicted seconds of one micro-batch of a node, forward and backward, on its slowest shard.
  double SecondsOf(NodeId node, const ConfigEntry* entry);

  // The message Plan of a candidate.
  absl::StatusOr<v1::Plan> ToPlan(const Candidate& candidate);

  const PcgStructure& structure() const { return structure_; }
  ConfigTable& table() { return *table_; }
  CostTables& costs() { return *costs_; }
  const Machine& machine() const { return machine_; }
  int num_devices() const { return static_cast<int>(machine_.devices.size()); }

 private:
  explicit Planning(const PlanProblem& problem) : problem_(problem) {}

  absl::Status AddParallelOperators(const Placement& placement, v1::Plan* plan);
  // For one parameter's gradient and its optimizer update.
  absl::Status AddUpdateOperators(const Placement& placement,
                                  const PcgStructure::GradientInfo& gradient, v1::Plan* plan);
  // Appends the parallel operators that convert layout `from` to `to`. `bytes` counts the whole
  // edge and is reported with the first of them.
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
