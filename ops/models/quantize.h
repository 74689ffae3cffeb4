// Served models with matrices in fewer bits.
#pragma once

#include "absl/status/statusor.h"
#include "ops/models/model.h"
#include "ops/quantized/quantize_graph.h"

namespace espalier {

// QuantizeLinears of the graph, and where the new parameters come from. Errors as QuantizeLinears.
absl::StatusOr<ServingModel> QuantizeServing(const OpRegistry& registry, ServingModel model,
                                             WeightFormat format);

}  // namespace espalier
