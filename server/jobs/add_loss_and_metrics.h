// Makes an imported ONNX model trainable: adds a loss and metrics to its first output.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ops/graph/graph.h"

namespace espalier {

constexpr char kLabelsInput[] = "labels";

// Adds the input "labels", the loss as output "loss" and each metric under its operator's name.
// `batch` is used only to infer the shape of the first output. `labels` is the type of class labels
// (kI32 or kI64). A loss or metric whose second input is a "target" has labels of the output's type
// and shape; a loss without a second input needs none. Returns InvalidArgument for an unknown loss
// or metric, and for a model without outputs or with an input named "labels".
absl::Status AddLossAndMetrics(const OpRegistry& registry, const std::string& loss,
                               const std::vector<std::string>& metrics, int64_t batch, DType labels,
                               Graph* graph);

}  // namespace espalier
