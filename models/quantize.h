// Served models with quantized matrices.
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "models/model.h"
#include "ops/quantized/quantize_graph.h"

namespace espalier {

// The format of packed weights on disk. config.json has "quantization_config" with this method and
// version, "bits" (8 or 4) and "group_size" (kPackGroup). The safetensors hold each parameter of
// the quantized serving graph under its own name and shape, with an empty WeightMap: matrices
// "<name>.int8" and "<name>.int4" as U8 [blocks, block bytes] (ops/kernel/packed_weights.h), those
// of experts as U8 [experts, blocks, block bytes], all others as floating-point numbers.
inline constexpr char kPackedMethod[] = "espalier";
inline constexpr int kPackedVersion = 2;

// Applies QuantizeLinears to the graph and adds the sources of the new parameters. Errors as
// QuantizeLinears.
absl::StatusOr<ServingModel> QuantizeServing(const OpRegistry& registry, ServingModel model,
                                             WeightFormat format);

// The same with a format per weight, by the parameter's name.
absl::StatusOr<ServingModel> QuantizeServing(const OpRegistry& registry, ServingModel model,
                                             const WeightFormats& formats);

// The format of packed weights; kF32 for models without them.
WeightFormat PackedFormat(const ModelFacts& facts);

// Returns the model in its serving format: quantized, or with the packed weights of its files.
// `format`: nullopt for the files' own. Returns FailedPrecondition if the files hold packed weights
// in another format.
absl::StatusOr<ServingModel> ToServingFormat(const OpRegistry& registry, ServingModel model,
                                             const ModelFacts& facts,
                                             std::optional<WeightFormat> format);

}  // namespace espalier
