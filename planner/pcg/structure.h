// What of the parallel computation graph does not depend on how operators are configured: the order
// in which nodes run, which layout each operand needs and in which layout each value is produced,
// both as references into the configuration of a forward node.
//
// The rules (DESIGN.md, "parallel op"):
//  - a forward node needs its inputs and leaves its outputs in the layouts that its configuration
//  gives;
//  - its gradient runs under the same configuration: forward values as the forward node had them,
//    gradients in the dual layouts;
//  - the sum of several gradients of a value runs in the dual of the layout in which it was
//  produced;
//  - a parameter is stored as its first consumer needs it; its gradient is needed there, fully
//  reduced;
//  - inputs and constants are loaded by every device as needed.
// ZeRO (Rajbhandari et al., SC 2020) has trained parameters' replicas share out work and memory:
//  - from stage 1 on a gradient is needed cut into pieces, one for each replica of its parameter,
//    and is used so;
//  - from stage 2 on it is cut as soon as it is there;
//  - at stage 3 the parameter is stored in the same pieces, and each use makes what it needs of
//    them anew, so that no whole copy stays between forward and backward.
// Which parameters can be cut depends on their layout (Sharded in layout.h); all others are treated
// as without.
// A graph that serves has a forward pass alone. Parameters and states are kept in each layout in
// which an operator needs them, so that none of them ever moves.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/graph/autodiff.h"
#include "planner/pcg/node_config.h"
#include "espalier/v1/program.pb.h"

namespace espalier {

struct LayoutRef {
  enum Mode {
    kPlain,
    kDual,
    kReduced,  // plain, or its dual where that is partial sums: what a reader needs of a result
    kParameterSum,  // `index` into PcgStructure::sums
    kSharded,       // plain, cut among its replicas
    kGradientShard,         // `index` into PcgStructure::gradient_shards
  };
  NodeId node = kNoNode;  // forward node
  bool output = false;
  int index = 0;
  Mode mode = kPlain;

  bool present() const { return node != kNoNode; }
};

// One operand of one position.
struct Slot {
  int position = 0;  // positions.size(): the synchronisation of gradients, after all nodes
  ValueId value = kNoValue;
  LayoutRef required;
};

struct Position {
  enum Role { kForward, kBackward, kGradientSum, kSeed, kScatter };
  Role role = kForward;
  NodeId node = kNoNode;  // in the training graph; none: kScatter, which only needs its operand
  NodeId config_node =
      kNoNode;         // the forward node whose parts this runs as, kForward and kBackward
  int first_slot = 0;  // slots [first_slot, last_slot) are its operands in order
  int last_slot = 0;
  // One per output; the parts of kGradientSum and kSeed; where kScatter's parameter is stored.
  std::vector<LayoutRef> outputs;
};

struct PcgStructure {
  struct NodeInfo {
    const OpDef* def = nullptr;  // null: dead
    NodeTypes types;
    SplitRule rule;
    // What changes when the node's configuration does.
    std::vector<ValueId> values;
    std::vector<int> positions;
  };
  struct ParameterSum {  // of the gradients of a parameter with several consumers
    LayoutRef target;    // what the update needs
    std::vector<LayoutRef> contributions;
  };
  struct GradientShard {  // cutting a gradient that was produced as `base`
    LayoutRef target;
    LayoutRef base;
  };
  struct GradientInfo {
    ValueId parameter = kNoValue;
    ValueId gradient = kNoValue;
    int slot = 0;  // its synchronisation
    int ready =
        0;  // the position behind which the gradient is whole and nothing reads the parameter
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
  std::vector<bool> casts_parameter;           // by value: at stage 3, a trained parameter in another type
  std::vector<GradientInfo> gradients;  // in the order in which they become ready
  std::vector<std::pair<std::string, ValueId>> reports;  // "loss" and the metrics
  std::vector<std::pair<std::string, ValueId>> outputs;  // serving: what is computed
  std::vector<v1::DynamicDimension> dynamic;  // serving, by value: how dimension 0 changes

  v1::DynamicDimension Dynamic(ValueId v) const {
    return dynamic.empty() ? v1::STATIC : dynamic[v];
  }

  // The batch may run in parts, one behind the other (pcg/micro_batches.h): then all types and
  // sizes of axes are those of one part, and these are the dimensions that were cut, by value; -1:
  // none.
  int micro_batches = 1;
  std::vector<int> batch_dims;

  int BatchDim(ValueId v) const { return batch_dims.empty() ? -1 : batch_dims[v]; }
  const Graph& graph() const { return training.graph; }
  std::vector<NodeId> LiveNodes() const;
};

// `graph` must be bound. Nodes that neither the loss nor a metric depends on are left out.
// InvalidArgument for a graph that cannot be trained, or a stage that is not 0 to 3.
absl::StatusOr<PcgStructure> BuildStructure(const OpRegistry& registry, const Graph& graph,
                                            bool forward_only, int zero_stage = 0);

// Of a serving graph (models): its operators are those that a named output depends on, or that
// write a state. InvalidArgument for one without outputs or with metadata that makes no sense.
absl::StatusOr<PcgStructure> BuildServingStructure(const OpRegistry& registry, const Graph& graph);

// By value of a serving graph: its metadata "dynamic.<input>" says which inputs change length; the
// rest follows. InvalidArgument names the entry that makes no sense.
absl::StatusOr<std::vector<v1::DynamicDimension>> FindDynamicDimensions(const Graph& graph);

// InvalidArgument names `field` and what it may be.
absl::Status CheckZeroStage(int stage, const std::string& field);

}  // namespace espalier
