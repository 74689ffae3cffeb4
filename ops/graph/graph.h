// The graph: operators and typed tensors, no placement. What a user submits, what the planner
// splits and what every importer produces. A plain value; nodes are kept in topological order.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ops/kernel/attributes.h"
#include "ops/schema/registry.h"
#include "ops/tensor/shape.h"

namespace espalier {

using ValueId = int;
using NodeId = int;
constexpr ValueId kNoValue = -1;
constexpr NodeId kNoNode = -1;

enum class ValueKind {
  kInput,      // fed every step: data, labels, batch metadata
  kParameter,  // trained, unless `trainable` is false; saved in checkpoints
  kState,      // kept between steps on the device, written by operators (KV caches)
  kComputed,
  kConstant,  // small literal, in `constant`
};

// The initial value of a parameter that is not in a weights file.
struct Initializer {
  // In the order of proto/espalier/v1/graph.proto, which says what they are.
  enum Kind {
    kZeros,
    kOnes,
    kNormal,
    kUniform,
    kGlorotUniform,
    kGlorotNormal,
    kHeUniform,
    kHeNormal,
    kConstant,
    kTruncatedNormal,
    kOrthogonal,
    kStored
  } kind = kZeros;
  double scale = 0;  // standard deviation (kNormal) or half width (kUniform)
  double mean = 0;
};

struct Value {
  std::string name;  // unique in the graph
  TensorType type;
  ValueKind kind = ValueKind::kComputed;
  NodeId producer = kNoNode;  // for kComputed
  int producer_output = 0;
  bool trainable = true;    // kParameter
  Initializer initializer;  // kParameter
  std::string constant;  // kConstant: the bytes, row-major; kParameter: initial bytes if not empty
  // kInput: weights of the batch's examples. Training adds them to the model's own inputs.
  bool example_weights = false;
};

struct Node {
  std::string name;  // unique in the graph; error messages and plans use it
  std::string op;
  Attributes attributes;
  std::vector<ValueId> inputs;  // kNoValue for an absent optional input
  // kNoValue, in gradient nodes only, for an output that nobody reads
  std::vector<ValueId> outputs;
  // Set by Differentiate on the nodes it adds: the forward node whose split this node follows.
  NodeId forward = kNoNode;
  std::string source;  // where the user's program made it, for errors: "train.py:12"; or empty
};

// The node in errors: "node 'fc' (linear)", with its source "node 'fc' (linear, train.py:12)".
std::string Describe(const Node& node);

class Graph {
 public:
  std::string name;
  // Free-form facts about the graph: "family" = "llama", "config" = the config.json text.
  std::map<std::string, std::string> metadata;

  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<Value>& values() const { return values_; }
  const Node& node(NodeId id) const { return nodes_[id]; }
  const Value& value(ValueId id) const { return values_[id]; }
  Node& mutable_node(NodeId id) { return nodes_[id]; }
  Value& mutable_value(ValueId id) { return values_[id]; }

  ValueId AddValue(Value value);
  NodeId AddNode(Node node);  // sets producer of its outputs

  // Named results. Training minimizes "loss"; the others are metrics and model outputs.
  std::vector<std::pair<std::string, ValueId>> outputs;

  ValueId FindValue(const std::string& name) const;   // kNoValue if there is none
  ValueId FindOutput(const std::string& name) const;  // kNoValue if there is none

  // By value: the (node, input index) pairs that read it.
  std::vector<std::vector<std::pair<NodeId, int>>> Consumers() const;

  NodeTypes TypesOf(NodeId id) const;  // attributes, input and output types of a node

 private:
  std::vector<Node> nodes_;
  std::vector<Value> values_;
};

// Replaces -1 in the inputs' dimensions by `batch` (> 0), checks every node against the registry,
// fills in attribute defaults and infers the types of all computed values. Errors name the node and
// the operator.
absl::Status BindAndInfer(const OpRegistry& registry, int64_t batch, Graph* graph);

}  // namespace espalier
