// The configuration-independent part of the parallel computation graph (PCG): the order of the
// nodes, the layout that each operand needs, and the layout in which each value is produced.
// Layouts are references into the configuration of a forward node.
//
// The rules (DESIGN.md, "parallel op"):
//   - A forward node needs its inputs and leaves its outputs in the layouts of its configuration.
//   - Its gradient runs under the same configuration: forward values as the forward node had them,
//     gradients in the dual layouts.
//   - The sum of several gradients of a value runs in the dual of the layout in which the value was
//     produced.
//   - A parameter is stored as its first consumer needs it; its gradient is needed there, fully
//     reduced.
//   - Inputs and constants are loaded by every device as needed.
//
// ZeRO (Rajbhandari et al., SC 2020) shards trained parameters' state among replicas:
//   - From stage 1 on, a gradient is needed in shards, one per replica of its parameter, and each
//     replica updates its shard.
//   - From stage 2 on, the gradient is sharded as soon as it is produced.
//   - At stage 3, the parameter is stored in the same shards. Each use gathers its own copy, so no
//     whole copy stays between forward and backward.
//
// Whether a parameter can be sharded depends on its layout (Sharded in layout.h); others are
// treated as at stage 0.
//
// A serving graph has only a forward pass. Parameters and states are kept in each layout that an
// operator needs, so they never move.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/program.pb.h"
#include "ops/graph/autodiff.h"
#include "planner/pcg/node_config.h"

namespace espalier {

struct LayoutRef {
  enum Mode {
    kPlain,
    kDual,
    kReduced,        // plain, or its dual if that has partial sums: what a reader needs of a result
    kParameterSum,   // `index` into PcgStructure::sums
    kSharded,        // plain, sharded among its replicas
    kGradientShard,  // `index` into PcgStructure::gradient_shards
  };
  NodeId node = kNoNode;  // forward node
  bool output = false;
  int index = 0;
  Mode mode = kPlain;

  bool present() const { return node != kNoNode; }
};

// One operand of one position.
struct Slot {
  int position = 0;  // positions.size(): the gradient synchronization, after all nodes
  ValueId value = kNoValue;
  LayoutRef required;
};

struct Position {
  enum Role { kForward, kBackward, kGradientSum, kSeed, kScatter };
  Role role = kForward;
  NodeId node = kNoNode;  // in the training graph; kNoNode: kScatter, which only needs its operand
  NodeId config_node =
      kNoNode;         // kForward and kBackward: the forward node whose parts this runs as
  int first_slot = 0;  // its operands are slots [first_slot, last_slot)
  int last_slot = 0;
  // One per output. kGradientSum and kSeed: the parts; kScatter: where the parameter is stored.
  std::vector<LayoutRef> outputs;
};

struct PcgStructure {
  struct NodeInfo {
    const OpDef* def = nullptr;  // null: dead
    NodeTypes types;
    SplitRule rule;
    // What depends on the node's configuration.
    std::vector<ValueId> values;
    std::vector<int> positions;
  };
  struct ParameterSum {  // the gradient of a parameter with several consumers
    LayoutRef target;    // what the update needs
    std::vector<LayoutRef> contributions;
  };
  struct GradientShard {  // shards a gradient that was produced as `base` (ZeRO stage 2)
    LayoutRef target;
    LayoutRef base;
  };
  struct GradientInfo {
    ValueId parameter = kNoValue;
    ValueId gradient = kNoValue;
    int slot = 0;  // its synchronization
    int ready =
        0;  // the position after which the gradient is complete and nothing reads the parameter
  };

  const OpRegistry* registry = nullptr;
  TrainingGraph training;  // `graph` alone when forward_only
  bool forward_only = false;
  bool serving = false;
  int zero_stage = 0;
  std::vector<Position> positions;
  std::vector<Slot> slots;
  std::vector<NodeInfo> nodes;                   // by forward node
  std::vector<LayoutRef> base;                   // by value: produced or stored; absent: loaded
  std::vector<std::vector<int>> slots_of_value;  // ascending
  std::vector<ParameterSum> sums;
  std::vector<GradientShard> gradient_shards;
  // by value: ZeRO stage 3, a cast of a trained parameter
  std::vector<bool> casts_parameter;
  std::vector<GradientInfo> gradients;                   // in the order in which they become ready
  std::vector<std::pair<std::string, ValueId>> reports;  // "loss" and the metrics
  // Serving: what is computed. Of a graph with kResultsMetadata: what is computed besides reports.
  std::vector<std::pair<std::string, ValueId>> outputs;
  std::vector<v1::DynamicDimension> dynamic;  // serving, by value: how dimension 0 changes

  v1::DynamicDimension Dynamic(ValueId v) const {
    return dynamic.empty() ? v1::STATIC : dynamic[v];
  }

  // With micro-batches (pcg/micro_batches.h) all types and axis sizes are those of one micro-batch,
  // and batch_dims holds, by value, the dimension that was split (-1: none).
  int micro_batches = 1;
  std::vector<int> batch_dims;
  std::vector<bool> adds_up;  // by value: micro-batches' results add up to that of the whole batch

  int BatchDim(ValueId v) const { return batch_dims.empty() ? -1 : batch_dims[v]; }
  const Graph& graph() const { return training.graph; }
  std::vector<NodeId> LiveNodes() const;
};

// Metadata of a graph whose named outputs are all computed and kept until the end of training's
// forward pass, and of evaluation. Otherwise only those are that are the loss or a metric.
inline constexpr char kResultsMetadata[] = "results";
inline constexpr char kResultsKept[] = "kept";

// Leaves out nodes that no report or output depends on. Returns InvalidArgument for a
// graph that cannot be trained, or a ZeRO stage outside 0 to 3. REQUIRES: `graph` is bound.
absl::StatusOr<PcgStructure> BuildStructure(const OpRegistry& registry, const Graph& graph,
                                            bool forward_only, int zero_stage = 0);

// For a serving graph (models/). Keeps the operators that a named output depends on or that write a
// state. Returns InvalidArgument for a graph without outputs or with invalid metadata.
absl::StatusOr<PcgStructure> BuildServingStructure(const OpRegistry& registry, const Graph& graph);

// Returns, by value of a serving graph, how dimension 0 changes. The metadata "dynamic.<input>"
// names the inputs that change length; the rest is derived. Returns InvalidArgument, with the
// entry, if the metadata is invalid.
absl::StatusOr<std::vector<v1::DynamicDimension>> FindDynamicDimensions(const Graph& graph);

// Returns InvalidArgument, with `field` and its legal values.
absl::Status CheckZeroStage(int stage, const std::string& field);

}  // namespace espalier
