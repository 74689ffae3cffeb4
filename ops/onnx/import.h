// ONNX files to graphs.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "ops/graph/graph.h"

namespace espalier {

// Converts the bytes of an ONNX model of opset 13 to 18, weights embedded, to a graph.
//  - The first dimension of an input may be symbolic: it becomes the batch (-1).
//  - Floating-point initialisers become trainable parameters under their own names (running
//  statistics
//    of batch normalisation are not trainable), other constants become constants.
//  - Outputs keep their names. There is no loss yet: whoever trains the graph attaches one.
// InvalidArgument names the node, its operator, the tensor or the attribute that is wrong and what
// would be accepted; Unimplemented names an operator, a form of one or an opset that is not taken.
absl::StatusOr<Graph> ImportOnnx(const OpRegistry& registry, const std::string& bytes);

}  // namespace espalier
