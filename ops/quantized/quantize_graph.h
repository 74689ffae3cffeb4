// Serving graphs with weights in fewer bits.
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

// How a served model keeps its matrices.
enum class WeightFormat { kF32, kBF16, kF16, kInt8, kInt4 };

const char* Name(WeightFormat format);  // "f32", "bf16", "f16", "int8", "int4"
// InvalidArgument with the names for any other text; "" is f32.
absl::StatusOr<WeightFormat> WeightFormatOf(absl::string_view name);

// Makes a quantized_linear of every `linear` of the graph whose weight is a parameter, and a
// quantized_expert_linear of every such `expert_linear`. Its weight is a new parameter
// "<name>." and the format's name, whose source is the old one; an old one that nothing else reads
// is removed. Embeddings, norms, biases and the small matrices by which a mixture chooses its
// experts stay as they are. f32 changes nothing. Types of the new graph have been inferred.
absl::StatusOr<Graph> QuantizeLinears(const OpRegistry& registry, const Graph& graph,
                                      WeightFormat format);
// The same, each weight in a format of its own, by the parameter's name.
using WeightFormats = std::function<WeightFormat(const std::string& parameter)>;
absl::StatusOr<Graph> QuantizeLinears(const OpRegistry& registry, const Graph& graph,
                                      const WeightFormats& formats);

// The bytes of such a parameter, from f32[out, in] of its source. Errors as those of Pack; a weight
// that is too large for f16 is one, too. REQUIRES: the format is not f32.
absl::StatusOr<std::vector<char>> QuantizeWeight(absl::string_view source, WeightFormat format,
                                                 int64_t out, int64_t in, const float* weights);

}  // namespace espalier
