// Served models with matrices in fewer bits.
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "models/model.h"
#include "ops/quantized/quantize_graph.h"

namespace espalier {

// A folder with packed weights says so in config.json: "quantization_config" with this method and
// version, "bits" (8 or 4) and "group_size" (kPackGroup). Its safetensors hold each parameter of
// the quantised serving graph under the parameter's own name and in its own shape, hence with a
// WeightMap that is empty: matrices "<name>.int8" and "<name>.int4" as U8 [blocks, block bytes]
// (ops/kernel/packed_weights.h), those of experts as U8 [experts, blocks, block bytes], all others
// as floating-point numbers.
inline constexpr char kPackedMethod[] = "espalier";
inline constexpr int kPackedVersion = 2;

// QuantizeLinears of the graph, and where the new parameters come from. Errors as QuantizeLinears.
absl::StatusOr<ServingModel> QuantizeServing(const OpRegistry& registry, ServingModel model,
                                             WeightFormat format);

// The same, each weight in a format of its own, by the parameter's name.
absl::StatusOr<ServingModel> QuantizeServing(const OpRegistry& registry, ServingModel model,
                                             const WeightFormats& formats);

// The format of packed weights; kF32 for models that have none.
WeightFormat PackedFormat(const ModelFacts& facts);

// The model in the format that it is to be served in: QuantizeServing, or the weights as they are
// packed. `format`: nullopt for the files' own. FailedPrecondition if the weights are packed in
// another one.
absl::StatusOr<ServingModel> ServingIn(const OpRegistry& registry, ServingModel model,
                                       const ModelFacts& facts, std::optional<WeightFormat> format);

}  // namespace espalier
