// The interface between the requests to a served graph and what computes it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ops/tensor/shape.h"

namespace espalier {

// Integers that a node of the graph takes: low <= value <= high.
struct AcceptedIntegers {
  int64_t low = 0, high = 0;
  std::string reader;  // the node, for errors
};

// An input or output of a served graph.
struct GraphTensorType {
  std::string name;
  TensorType example;                           // without the dimension of the batch
  std::vector<AcceptedIntegers> accepted = {};  // an input's values are within all of them
};

struct GraphSignature {
  std::vector<GraphTensorType> inputs, outputs;
};

// Some examples of one request.
struct BatchPart {
  const std::vector<std::string>* inputs = nullptr;  // by input: the request's examples
  std::vector<std::string>* outputs = nullptr;       // by output: has room for its examples
  int64_t first = 0;                                 // of the request's examples
  int64_t examples = 0;
};

// Computes the outputs of batches, in inference mode. Used by one thread at a time.
class BatchRunner {
 public:
  virtual ~BatchRunner() = default;

  virtual const GraphSignature& signature() const = 0;
  // The most examples of one pass.
  virtual int64_t max_batch() const = 0;
  // Runs one pass over all parts' examples, at most max_batch() and at least one, and writes their
  // outputs, which do not depend on the other parts.
  virtual absl::Status Run(const std::vector<BatchPart>& parts) = 0;
};

}  // namespace espalier
