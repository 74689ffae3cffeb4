// Graphs to ONNX files.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/graph/graph.h"

namespace espalier {

constexpr int64_t kExportedOnnxOpset = 21;

// The elements of a parameter: here, or in a file beneath the model's folder.
struct OnnxWeight {
  std::string bytes;
  std::string location;  // empty: in `bytes`
  int64_t offset = 0;
};

struct ExportOptions {
  // Outputs of the graph to compute. Empty: all that are neither losses nor metrics.
  std::vector<std::string> outputs;
  // Elements of each parameter. Without it the initial ones that the graph carries.
  std::function<absl::StatusOr<OnnxWeight>(const Value& parameter)> weight;
};

// The bytes of an ONNX model in its form for inference (dropout does nothing, batch normalisation
// uses the running values), of opset 21. Inputs, outputs and parameters keep their names, the batch
// stays symbolic; inputs that only what is left out reads are left out. Unimplemented names the
// node and the operator that has no form in ONNX.
absl::StatusOr<std::string> ExportOnnx(const OpRegistry& registry, const Graph& graph,
                                       const ExportOptions& options = {});

// Operators of ours that are written by a rule of their own, besides those with an OnnxForm.
std::vector<std::string> ExportableOperators();

}  // namespace espalier
