// The planner's public interface: makes a plan for a graph, and lowers plans to programs. All
// functions depend on their arguments only.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/plan.pb.h"
#include "espalier/v1/program.pb.h"
#include "ops/graph/graph.h"
#include "ops/kernel/kernel.h"

namespace espalier {

class CommunicationModel;
class Topology;
struct Timeline;  // planner/report/timeline.h

// The devices to plan for, and the network between them.
struct Machine {
  std::vector<v1::Device> devices;  // device i is rank i
  // The link between any two devices, if `topology` is null.
  v1::Link link;
  // The machine of a machine file. Its first devices are `devices`; it may have more. May be null.
  std::shared_ptr<const Topology> topology;
  std::string name;  // of the machine file's machine
  // Measured times of messages and collectives between these devices. Times that are not measured
  // come from `topology` or `link`. May be null.
  std::shared_ptr<const CommunicationModel> communication;
};

// Predicts the seconds of one operator shard on one device, forward and backward. Implementations:
// the analytic roofline (planner/cost/analytic_cost.h) and a cache of measurements in front of it
// (planner/cost/measured_cost.h).
class CostModel {
 public:
  struct Times {
    double forward = 0;
    double backward = 0;
  };
  virtual ~CostModel() = default;
  // `shard`: the attributes and local types of one shard.
  virtual Times Measure(const OpDef& def, const NodeTypes& shard, const v1::Device& device) = 0;
  // Returns only measured times, or times that can be measured now.
  virtual std::optional<Times> Measured(const OpDef& def, const NodeTypes& shard,
                                        const v1::Device& device) {
    return std::nullopt;
  }
  // Returns a copy with the current measurements, for use by another thread while this model is
  // used and adds measurements. Returns null if the model supports no forks; it must then not be
  // shared by threads. The copy must not outlive this.
  virtual std::unique_ptr<CostModel> Fork() { return nullptr; }
  // Merges what a fork of this model has measured. Not thread-safe.
  virtual void Join(const CostModel& fork) {}
};

// Returns the bytes of workspace that `device`'s kernel for `spec` needs
// (Kernel::workspace_bytes), or nothing if they are not known here. Called by several threads.
using WorkspaceQuery =
    std::function<std::optional<int64_t>(const KernelSpec& spec, const v1::Device& device)>;

// The input of MakePlan. Pointers must outlive the call.
struct PlanProblem {
  const OpRegistry* registry = nullptr;
  const Graph* graph = nullptr;  // bound and inferred
  int64_t batch_size = 0;
  Machine machine;
  v1::Optimizer optimizer;  // its state counts towards memory
  CostModel* cost = nullptr;
  WorkspaceQuery workspace;  // optional: without it predicted peaks leave out kernels' workspace
  std::function<void(double fraction)> progress;  // optional; fraction of the search done
  std::function<double()> seconds;                // optional clock, to report the search time
  // Optional: once true, searches end with the best plan so far. Called by all threads.
  std::function<bool()> stop;
  // Optional: calls work(0) to work(count - 1), in parallel if it can, and returns when all are
  // done; calls may be nested. Used if the cost model has forks. Plans do not depend on it
  // (ForEachApart in planner/parallel.h).
  std::function<void(int count, const std::function<void(int)>& work)> for_each;
};

// Searches a plan (or checks the imported one) and simulates the alternatives. If the options name
// no ZeRO stage, uses that of the imported plan; otherwise 0 or, if memory is short, the stage with
// the fastest prediction including swaps and recomputation. Returns InvalidArgument for a graph
// that cannot be trained, a plan of another graph or an option out of range; ResourceExhausted,
// with required and available bytes per device, if nothing fits.
absl::StatusOr<v1::Plan> MakePlan(const PlanProblem& problem, const v1::SearchOptions& options);

// The identity of a bound graph: a hash of operators, attributes, shapes and names.
std::string GraphFingerprint(const Graph& graph);

// Options of LowerPlan.
struct LoweringOptions {
  v1::Optimizer optimizer;
  uint64_t seed = 0;
  // Graph input -> data set column for LoadBatch.
  std::map<std::string, std::string> columns;
  // Constants of more bytes become STORED buffers, whose values are not in the program.
  int64_t max_literal_bytes = std::numeric_limits<int64_t>::max();
  WorkspaceQuery workspace;  // as in PlanProblem
  bool evaluates = true;     // false: LoweredPlan.evaluation stays empty, and needs no memory
};

// The number of batch tiles (MemoryOptions.max_batch_tiles), with the default for 0. Tiling changes
// the rounding of sums and nothing else.
inline int MaxBatchTiles(const v1::MemoryOptions& options) {
  if (options.max_batch_tiles() > 0) return options.max_batch_tiles();
  return options.disable_swap() && options.disable_recompute() ? 1 : 8;
}
inline int BatchTilesOf(const v1::Plan& plan) {
  return plan.batch_tiles() > 0 ? plan.batch_tiles() : 1;
}

// Memory limits of devices, and which methods may be used to meet them: swaps, recomputation, batch
// tiles.
struct MemoryLimits {
  std::vector<int64_t> bytes;  // by device; 0, or empty: no limit
  // By device: memory for kernels' workspace apart from `bytes`, which then has none of it; -1, or
  // empty: `bytes` is for both.
  std::vector<int64_t> extra_workspace;
  v1::MemoryOptions options;
  // Operator of the plan -> predicted seconds of one micro-batch, forward and backward; copies can
  // overlap with them.
  std::map<std::string, double> node_seconds;
  std::vector<double> overhead_seconds;  // by device: per operator; empty: none
  std::vector<v1::Device> devices;

  void AddDevice(const v1::Device& device) {
    devices.push_back(device);
    bytes.push_back(device.memory_bytes());
    overhead_seconds.push_back(device.op_overhead_seconds());
  }
  bool may_change_programs() const {
    return !(options.disable_swap() && options.disable_recompute()) || MaxBatchTiles(options) > 1;
  }
};

// The programs of a plan.
struct LoweredPlan {
  std::vector<v1::Program> training;  // by rank; unused devices have no instructions
  std::vector<v1::Program>
      evaluation;  // forward only, training = false; the same parameter buffers by name
  // By rank: bytes of device memory that the programs take together, with kernels' workspace where
  // it is known. Evaluation uses training's arena and workspace, or its own where those are too
  // small.
  std::vector<int64_t> peak_bytes;
};

// Lowers a plan to one program per device. All devices execute sends, receives and collectives in
// one global order, so they cannot deadlock. Errors as MakePlan.
absl::StatusOr<LoweredPlan> LowerPlan(const OpRegistry& registry, const Graph& graph,
                                      const v1::Plan& plan, const LoweringOptions& options);

// Options of LowerServing.
struct ServingLowering {
  // Limit on parameters in device memory. The rest is kept on the host and swapped in ahead of its
  // use (planner/memory/weight_streaming.h). 0: no limit.
  int64_t resident_weight_bytes = 0;
};

// Lowers a serving graph to a forward program for one device. `graph` is a bound serving graph
// (models): its metadata "dynamic.<input>" = "rows" | "output_rows" marks inputs of variable
// length; its named outputs become Program.outputs. Sets batch_invariant. Returns
// ResourceExhausted, with the bytes that would suffice, if a limit is too small.
absl::StatusOr<v1::Program> LowerServing(const OpRegistry& registry, const Graph& graph,
                                         const ServingLowering& options = {});

// The devices of one served model: `pipeline_parallel` stages of consecutive layers with
// `tensor_parallel` devices each. Rank = stage * tensor_parallel + tensor-parallel rank.
struct ServingDegrees {
  int tensor_parallel = 1;
  int pipeline_parallel = 1;

  int ranks() const { return tensor_parallel * pipeline_parallel; }
};

// Like LowerServing, with one program per rank. Attention and KV caches are split by heads (K/V
// heads are replicated if they are fewer than the ranks), pairs of linear layers into columns and
// rows (one all-reduce per pair), embedding tables and logits by vocabulary; anything else runs
// whole on every device of its stage. A program has the inputs that it reads; named outputs are
// complete, on the last stage's first rank. Splits change the rounding of sums and nothing else;
// rows stay batch-invariant. `options` apply to each rank. Returns InvalidArgument, by name, if the
// ranks do not divide the query heads, or neither divide the K/V heads nor are a multiple of them,
// or if there are more stages than layers.
absl::StatusOr<std::vector<v1::Program>> LowerServing(const OpRegistry& registry,
                                                      const Graph& graph,
                                                      const ServingDegrees& degrees,
                                                      const ServingLowering& options = {});

// The text table of `espalier plan`: the choice for each operator, and predictions of the plan and
// its alternatives.
std::string RenderPlan(const v1::Plan& plan);

// Returns the graph that the plan's operators refer to: `graph` after the plan's rewrites. Returns
// InvalidArgument for a rewrite that is unknown or does not match.
absl::StatusOr<Graph> GraphOf(const OpRegistry& registry, const Graph& graph, const v1::Plan& plan);

// Simulates a step of `plan`. REQUIRES: `plan` is of this problem. Errors as MakePlan for an
// imported plan.
absl::StatusOr<std::shared_ptr<const Timeline>> SimulatePlan(const PlanProblem& problem,
                                                             const v1::Plan& plan);

// The HTML page of `espalier plan --html`: RenderPlan's content plus the graph, the predicted
// timeline, links and memory. `graph`, here and below, is GraphOf the plan.
std::string RenderPlanPage(const v1::Plan& plan, const Graph& graph, const Timeline& timeline);

// DOT for Graphviz: the tasks of a step in order, with transfers merged over devices; and the
// operators of the graph with parallel operators between them, with times and bytes if `costs`.
std::string RenderTaskGraph(const Timeline& timeline);
std::string RenderComputationGraph(const v1::Plan& plan, const Graph& graph, bool costs);

// The indented JSON mapping of the message. Import errors name line and field.
absl::StatusOr<std::string> ExportPlan(const v1::Plan& plan);
absl::StatusOr<v1::Plan> ImportPlan(const std::string& json);

}  // namespace espalier
