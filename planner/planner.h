// The way into planner/: graph in, plan out; plan in, programs out. Pure functions of their
// arguments.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/graph/graph.h"
#include "espalier/v1/plan.pb.h"
#include "espalier/v1/program.pb.h"

namespace espalier {

class CommunicationModel;
class Topology;
struct Timeline;  // planner/report/timeline.h

struct Machine {
  std::vector<v1::Device> devices;  // device i is rank i
  // Between any two devices, where there is no topology.
  v1::Link link;
  // Of these devices, or of more (then these are its first): a machine that a file describes.
  std::shared_ptr<const Topology> topology;
  std::string name;  // of that machine
  // What messages and collectives took between these devices; what it does not know is taken from
  // topology or link.
  std::shared_ptr<const CommunicationModel> communication;
};

// Seconds of one operator shard on one device, forward and backward. Implementations: the analytic
// roofline (planner/cost/analytic_cost.h) and a cache of measurements in front of it
// (planner/cost/measured_cost.h).
class CostModel {
 public:
  struct Times {
    double forward = 0;
    double backward = 0;
  };
  virtual ~CostModel() = default;
  // `shard` holds the attributes and the local types of one part.
  virtual Times Measure(const OpDef& def, const NodeTypes& shard, const v1::Device& device) = 0;
  // Only what somebody has measured, or can measure now.
  virtual std::optional<Times> Measured(const OpDef& def, const NodeTypes& shard,
                                        const v1::Device& device) {
    return std::nullopt;
  }
  // A model that knows what this one knows now, for another thread to ask while this one is asked
  // and learns; null: there is none, and no two threads may ask. It must not outlive this.
  virtual std::unique_ptr<CostModel> Fork() { return nullptr; }
  // Learns what a fork of this one has measured. Not while other threads ask.
  virtual void Join(const CostModel& fork) {}
};

struct PlanProblem {
  const OpRegistry* registry = nullptr;
  const Graph* graph = nullptr;  // bound and inferred
  int64_t batch_size = 0;
  Machine machine;
  v1::Optimizer optimizer;  // its state counts towards memory
  CostModel* cost = nullptr;
  std::function<void(double fraction)> progress;  // optional
  std::function<double()> seconds;                // optional clock, only to report search time
  // Optional: once it is true, searches end with the best plan so far. Asked by all threads.
  std::function<bool()> stop;
  // Optional: calls work(0) to work(count - 1), at once if it can, and returns when all are done;
  // work may call it again. Used where the cost model has forks. Plans do not depend on it
  // (ForEachApart in planner/parallel.h).
  std::function<void(int count, const std::function<void(int)>& work)> for_each;
};

// Searches (or checks the imported plan) and simulates the alternatives. Where the options name no
// ZeRO stage: that of the imported plan; else 0, or where memory is short the one that is predicted
// to be fastest, what swaps and recomputation add included. Errors: InvalidArgument for a graph
// that cannot be trained, a plan of another graph or an option out of range; ResourceExhausted,
// with the bytes needed and present by device, if nothing fits.
absl::StatusOr<v1::Plan> MakePlan(const PlanProblem& problem,
                                     const v1::SearchOptions& options);

// Identity of a bound graph: hash of operators, attributes, shapes and names.
std::string GraphFingerprint(const Graph& graph);

struct LoweringOptions {
  v1::Optimizer optimizer;
  uint64_t seed = 0;
  // Graph input -> dataset column for LoadBatch.
  std::map<std::string, std::string> columns;
};

// See MemoryOptions.max_batch_tiles: what 0 stands for is said here. Sums over tiles are rounded
// in another order; nothing else changes.
inline int MaxBatchTiles(const v1::MemoryOptions& options) {
  if (options.max_batch_tiles() > 0) return options.max_batch_tiles();
  return options.disable_swap() && options.disable_recompute() ? 1 : 8;
}
inline int BatchTilesOf(const v1::Plan& plan) {
  return plan.batch_tiles() > 0 ? plan.batch_tiles() : 1;
}

// Devices whose programs must fit, and how they are made to: swaps, recomputation, tiles.
struct MemoryLimits {
  std::vector<int64_t> bytes;  // by device; 0, or empty: any size
  // More of the device, in which kernels' workspace may lie but not the program; empty: none.
  std::vector<int64_t> extra_workspace;
  v1::MemoryOptions options;
  // Operator of the plan -> predicted seconds of one micro-batch, forward and backward: what copies
  // can hide behind.
  std::map<std::string, double> node_seconds;
  std::vector<double> overhead_seconds;  // by device: of each operator that runs; empty: none

  void AddDevice(const v1::Device& device) {
    bytes.push_back(device.memory_bytes());
    overhead_seconds.push_back(device.op_overhead_seconds());
  }
  bool may_change_programs() const {
    return !(options.disable_swap() && options.disable_recompute()) || MaxBatchTiles(options) > 1;
  }
};

struct LoweredPlan {
  std::vector<v1::Program>
      training;  // by rank; devices that the plan does not use have no instructions
  std::vector<v1::Program>
      evaluation;  // forward only, training = false; the same parameter buffers by name
};

// One program per device. Every device meets its sends, receives and collectives in one global
// order, so they cannot deadlock. Errors as MakePlan.
absl::StatusOr<LoweredPlan> LowerPlan(const OpRegistry& registry, const Graph& graph,
                                      const v1::Plan& plan, const LoweringOptions& options);

struct ServingLowering {
  // What parameters may take of the device. If they are more, the others lie on the host and are
  // swapped in ahead of their use (planner/memory/weight_streaming.h). 0: no limit.
  int64_t resident_weight_bytes = 0;
};

// A forward program of one device for serving. `graph` is a bound serving graph (models): its
// metadata "dynamic.<input>" = "rows" | "output_rows" says which inputs change length, the rest
// follows; its named outputs become Program.outputs. batch_invariant is set. ResourceExhausted, with the
// bytes that would do, for a limit that is too small.
absl::StatusOr<v1::Program> LowerServing(const OpRegistry& registry, const Graph& graph,
                                            const ServingLowering& options = {});

// Devices that serve one model: `pipeline_parallel` stages of consecutive layers, the operators of
// each cut into `tensor_parallel` parts. Rank = stage * tensor_parallel + part.
struct ServingDegrees {
  int tensor_parallel = 1;
  int pipeline_parallel = 1;

  int ranks() const { return tensor_parallel * pipeline_parallel; }
};

// As LowerServing, one program for each rank. Attention and its KV caches are cut by heads
// (those of keys and values, where they are fewer than the parts, are each on several ranks),
// linear layers in turn into columns and rows (one all-reduce for each pair), tables of rows and
// logits by the vocabulary; what cannot be cut runs whole on every device of its stage. A program
// has the inputs that it reads; the named outputs are whole, on the last stage's first rank.
// Sums over rows' parts are rounded in another order; nothing else changes, and a row's result
// still does not depend on its batch. `options` hold for each rank. InvalidArgument, by name, where
// the parts do not divide the heads of queries, or neither divide those of keys and values nor are
// a multiple of them, or where there are more stages than layers.
absl::StatusOr<std::vector<v1::Program>> LowerServing(const OpRegistry& registry,
                                                         const Graph& graph,
                                                         const ServingDegrees& degrees,
                                                         const ServingLowering& options = {});

// The table of `espalier plan`: per operator what was chosen, predicted against the alternatives.
std::string RenderPlan(const v1::Plan& plan);

// The graph whose operators the plan names: `graph`, which it is for, after its rewrites.
// InvalidArgument for a rewrite that does not fit or that nobody knows.
absl::StatusOr<Graph> GraphOf(const OpRegistry& registry, const Graph& graph,
                              const v1::Plan& plan);

// The simulated step of `plan`, which is one of this problem, for what follows. Errors as MakePlan
// for an imported plan.
absl::StatusOr<std::shared_ptr<const Timeline>> SimulatePlan(const PlanProblem& problem,
                                                             const v1::Plan& plan);

// The page of `espalier plan --html`: as RenderPlan, with the graph, the predicted timeline, links
// and memory. `graph`, here and below, is GraphOf the plan.
std::string RenderPlanPage(const v1::Plan& plan, const Graph& graph, const Timeline& timeline);

// In Graphviz' language: the tasks of a step in their order, those of several devices joined; and
// the operators of the graph with the parallel operators between them, with `costs` their times and
// bytes, too.
std::string RenderTaskGraph(const Timeline& timeline);
std::string RenderComputationGraph(const v1::Plan& plan, const Graph& graph, bool costs);

// JSON mapping of the protobuf, indented; Import says line and field of what is wrong.
absl::StatusOr<std::string> ExportPlan(const v1::Plan& plan);
absl::StatusOr<v1::Plan> ImportPlan(const std::string& json);

}  // namespace espalier
