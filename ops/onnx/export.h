// Exports graphs to ONNX files.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/graph/graph.h"

namespace espalier {

constexpr int64_t kExportedOnnxOpset = 21;

// The elements of a parameter: in memory, or in a file below the model's folder.
struct OnnxWeight {
  std::string bytes;
  std::string location;  // empty: in `bytes`
  int64_t offset = 0;
};

struct ExportOptions {
  // Outputs of the graph to export. Empty: all but losses, metrics, what is computed from them, and
  // "loss", whatever computes it, if there are others.
  std::vector<std::string> outputs;
  // Returns the elements of a parameter. Default: the initial values in the graph.
  std::function<absl::StatusOr<OnnxWeight>(const Value& parameter)> weight;
};

// Returns the bytes of an inference-only ONNX model of opset 21: dropout is the identity, batch
// normalization uses the running statistics. Inputs, outputs and parameters keep their names and
// the batch stays symbolic. kTrainableKey (import.h) lists the trained parameters. Omits inputs
// that no exported node reads. Returns Unimplemented, with the node, for an operator that ONNX does
// not have.
absl::StatusOr<std::string> ExportOnnx(const OpRegistry& registry, const Graph& graph,
                                       const ExportOptions& options = {});

// Operators with an exporter of their own, in addition to those with an OnnxForm.
std::vector<std::string> ExportableOperators();

}  // namespace espalier
