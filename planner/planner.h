// The way into planner/: graph in, plan out; plan in, programs out. Pure functions of their
// arguments.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/graph/graph.h"
#include "proto/plan.pb.h"
#include "proto/program.pb.h"

namespace espalier {

class CommunicationModel;
class Topology;

struct Machine {
  std::vector<proto::Device> devices;  // device i is rank i
  // Between any two devices, where there is no topology.
  proto::Link link;
  // Of these devices, or of more (then these are its first): a machine that a file describes.
  std::shared_ptr<const Topology> topology;
  std::string name;  // of that machine
  // What messages and collectives took between these devices; what it does not know is taken from
  // topology or link.
  std::shared_ptr<const CommunicationModel> communication;
};

// Seconds of one operator shard on one device, forward and backward. Implementations: the analytic
// roofline (planner/cost/analytic.h) and a cache of measurements in front of it
// (planner/cost/measured.h).
class CostModel {
 public:
  struct Times {
    double forward = 0;
    double backward = 0;
  };
  virtual ~CostModel() = default;
  // `shard` holds the attributes and the local types of one part.
  virtual Times Measure(const OpDef& def, const NodeTypes& shard, const proto::Device& device) = 0;
};

struct PlanProblem {
  const OpRegistry* registry = nullptr;
  const Graph* graph = nullptr;  // bound and inferred
  int64_t batch_size = 0;
  Machine machine;
  proto::Optimizer optimizer;  // its state counts towards memory
  CostModel* cost = nullptr;
  std::function<void(double fraction)> progress;  // optional
  std::function<double()> seconds;                // optional clock, only to report search time
};

// Searches (or checks the imported plan) and simulates the alternatives. Where the options name no
// ZeRO stage: that of the imported plan; else 0, or the lowest that fits, unless swapping at a
// lower one is predicted to be faster. Errors: InvalidArgument for a graph that cannot be trained,
// a plan of another graph or an option out of range; ResourceExhausted, with the bytes needed and
// present by device, if nothing fits.
absl::StatusOr<proto::Plan> MakePlan(const PlanProblem& problem,
                                     const proto::SearchOptions& options);

// Identity of a bound graph: hash of operators, attributes, shapes and names.
std::string GraphFingerprint(const Graph& graph);

struct LoweringOptions {
  proto::Optimizer optimizer;
  uint64_t seed = 0;
  // Graph input -> dataset column for LoadBatch.
  std::map<std::string, std::string> columns;
  // A program that swaps and recomputation cannot make fit may work on the batch in 2, 4, ... and
  // up to so many slices, operator by operator. Sums over the batch are then rounded in another
  // order.
  int max_batch_slices = 1;
};

// Devices whose programs must fit, and how they are made to: swaps and recomputation.
struct MemoryLimits {
  std::vector<int64_t> bytes;  // by device; 0, or empty: any size
  // More of the device, in which kernels' workspace may lie but not the program; empty: none.
  std::vector<int64_t> beside;
  proto::MemoryOptions options;
  // Operator of the plan -> predicted seconds of one micro-batch, forward and backward: what copies
  // can hide behind.
  std::map<std::string, double> node_seconds;

  bool may_change_programs() const {
    return !(options.disable_swap() && options.disable_recompute());
  }
};

struct LoweredPlan {
  std::vector<proto::Program>
      training;  // by rank; devices that the plan does not use have no instructions
  std::vector<proto::Program>
      evaluation;  // forward only, training = false; the same parameter buffers by name
};

// One program per device. Every device meets its sends, receives and collectives in one global
// order, so they cannot deadlock. Errors as MakePlan.
absl::StatusOr<LoweredPlan> LowerPlan(const OpRegistry& registry, const Graph& graph,
                                      const proto::Plan& plan, const LoweringOptions& options);

// A forward program of one device for serving. `graph` is a bound serving graph (ops/models): its
// metadata "dynamic.<input>" = "rows" | "output_rows" says which inputs change length, the rest
// follows; its named outputs become Program.outputs. row_stable is set.
absl::StatusOr<proto::Program> LowerServing(const OpRegistry& registry, const Graph& graph);

// The table of `espalier plan`: per operator what was chosen, predicted against the alternatives.
std::string RenderPlan(const proto::Plan& plan);

// The page of `espalier plan --html`: as RenderPlan, with the graph, the predicted timeline, links
// and memory. `plan` is one of this problem. Errors as MakePlan for an imported plan.
absl::StatusOr<std::string> RenderPlanPage(const PlanProblem& problem, const proto::Plan& plan);

// JSON mapping of the protobuf, indented; Import says line and field of what is wrong.
absl::StatusOr<std::string> ExportPlan(const proto::Plan& plan);
absl::StatusOr<proto::Plan> ImportPlan(const std::string& json);

}  // namespace espalier
