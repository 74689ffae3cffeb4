// Rewrites serving graphs to quantized weights.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ops/graph/graph.h"

namespace espalier {

// The format of a served model's matrices.
enum class WeightFormat { kF32, kBF16, kF16, kInt8, kInt4 };

const char* Name(WeightFormat format);  // "f32", "bf16", "f16", "int8", "int4"
// Returns InvalidArgument with the accepted names for any other text; "" is f32.
absl::StatusOr<WeightFormat> WeightFormatOf(absl::string_view name);

// Replaces every `linear` of the graph whose weight is a parameter by quantized_linear, and every
// such `expert_linear` by quantized_expert_linear. The weight becomes a new parameter
// "<name>.<format>", whose source is the old one; an old one that nothing else reads is removed.
// Embeddings, norms, biases and the router weights of mixtures stay. f32 changes nothing. Types of
// the new graph are inferred.
absl::StatusOr<Graph> QuantizeLinears(const OpRegistry& registry, const Graph& graph,
                                      WeightFormat format);
// The same with a format per weight, by the parameter's name.
using WeightFormats = std::function<WeightFormat(const std::string& parameter)>;
absl::StatusOr<Graph> QuantizeLinears(const OpRegistry& registry, const Graph& graph,
                                      const WeightFormats& formats);

// Returns the bytes of such a parameter from f32[out, in] of its source. Errors as Pack, and for a
// weight that is too large for f16. REQUIRES: the format is not f32.
absl::StatusOr<std::vector<char>> QuantizeWeight(absl::string_view source, WeightFormat format,
                                                 int64_t out, int64_t in, const float* weights);

}  // namespace espalier
