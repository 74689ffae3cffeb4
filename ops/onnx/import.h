// ONNX files to graphs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/graph/graph.h"

namespace espalier {

// Opsets of the default domain that are read.
constexpr int64_t kMinOnnxOpset = 9;
constexpr int64_t kMaxOnnxOpset = 21;

// Runs one operator on the host: the bytes of its inputs (null if absent) to those of its outputs.
// `types` is complete. See cpu_evaluator.h.
using Evaluator = std::function<absl::StatusOr<std::vector<std::string>>(
    const std::string& op, const NodeTypes& types, const std::vector<const std::string*>& inputs)>;

// A tensor in memory: little-endian, row-major.
struct HostTensor {
  TensorType type;
  std::string bytes;
};

struct ImportOptions {
  // Computes what is constant. Without it constants are not folded, and a model that computes a
  // shape or an axis is refused.
  Evaluator evaluator;
  // The folder of the model's file: weights kept in other files are read from it and its
  // subfolders, never through a symbolic link. Empty: such models are refused.
  std::string folder;
  // Values of graph inputs, used only where the import needs one (a shape or axes that are an input
  // of the model). The input stays an input.
  std::map<std::string, HostTensor> constants;
  // Shapes of graph inputs in place of those in the file, for models with more than one symbolic
  // dimension. Dimension 0 may be -1.
  std::map<std::string, Dims> shapes;
  // Bytes of all constants that nodes make (of a range, in the turns of a loop) at most: a small
  // file may ask for any number. Beyond: Unimplemented. The file's own tensors do not count, in
  // initializers or in Constant nodes; from the second time on that one is read, in a loop or a
  // function, it does.
  int64_t max_constant_bytes = int64_t{1} << 30;
};

// Converts the bytes of an ONNX model to a graph.
//  - The first dimension of an input may be symbolic: it becomes the batch (-1).
//  - Floating-point initialisers become trainable parameters under their own names (running
//    statistics of batch normalisation are not trainable), other constants become constants.
//  - What is computed from constants alone is computed now; functions and branches, and loops of a
//    known length, are written out; what no output needs is left out.
//  - Outputs keep their names. There is no loss yet: whoever trains the graph attaches one.
// InvalidArgument names the node, its operator, the tensor or the attribute that is wrong and what
// would be accepted; Unimplemented names an operator, a form of one or an opset that is not taken.
absl::StatusOr<Graph> ImportOnnx(const OpRegistry& registry, const std::string& bytes,
                                 const ImportOptions& options = {});

// Of one kind that ImportOnnx does not take, whatever its attributes.
struct UnsupportedOperator {
  std::string op;  // with its domain, unless that is ONNX's own
  int nodes = 0;
  std::string first_node;
  std::string reason;
};
// Each kind once, by first appearance, functions and branches included; none where `bytes` are no
// model. A model without any may still be refused: for a form of an operator, or for what is wrong
// in it.
std::vector<UnsupportedOperator> UnsupportedOperators(const OpRegistry& registry,
                                                      const std::string& bytes);

// ONNX operators that are read, sorted; those that are known and not read, with the reason.
std::vector<std::string> SupportedOnnxOperators(const OpRegistry& registry);
const std::map<std::string, std::string>& UnsupportedOnnxOperators();

}  // namespace espalier
