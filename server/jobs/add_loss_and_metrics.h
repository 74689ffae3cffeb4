// Makes an imported ONNX model trainable: a loss and metrics on its first output.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ops/graph/graph.h"

namespace espalier {

constexpr char kLabelsInput[] = "labels";

// Adds the input "labels", the loss as output "loss" and each metric under its operator's name.
// `batch` is only used to find the shape of the first output. `labels` is the type of class labels
// (kI32 or kI64); losses and metrics whose second input is a "target" have labels of the type and
// shape of the output, and a loss without a second input needs none.
// InvalidArgument: unknown loss or metric, a model without outputs or with an input named "labels".
absl::Status AddLossAndMetrics(const OpRegistry& registry, const std::string& loss,
                        const std::vector<std::string>& metrics, int64_t batch, DType labels,
                        Graph* graph);

}  // namespace espalier
