#include "models/quantize.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier {

absl::StatusOr<ServingModel> QuantizeServing(const OpRegistry& registry, ServingModel model,
                                             WeightFormat format) {
  return QuantizeServing(registry, std::move(model),
                         [format](const std::string&) { return format; });
}

absl::StatusOr<ServingModel> QuantizeServing(const OpRegistry& registry, ServingModel model,
                                             const WeightFormats& formats) {
  absl::StatusOr<Graph> graph = QuantizeLinears(registry, model.graph, formats);
  if (!graph.ok()) return graph.status();
  for (const Node& node : graph->nodes()) {
    if (node.op != "quantized_linear" && node.op != "quantized_expert_linear") continue;
    const std::string name = node.attributes.String("source");
    const Dims& dims = model.graph.value(model.graph.FindValue(name)).type.dims;
    const auto known = model.weights.sources.find(name);
    WeightSource source = known != model.weights.sources.end()
                              ? known->second
                              : WeightSource{{{name, dims, false, 0, dims[0]}}};
    if (const int bits = static_cast<int>(node.attributes.Int("bits")); bits < 16) {
      source.bits = bits;
      source.out = dims[dims.size() - 2];
      source.in = dims.back();
    }
    model.weights.sources[graph->value(node.inputs[1]).name] = std::move(source);
  }
  model.graph = *std::move(graph);
  return model;
}

WeightFormat PackedFormat(const ModelFacts& facts) {
  return facts.packed_bits == 8   ? WeightFormat::kInt8
         : facts.packed_bits == 4 ? WeightFormat::kInt4
                                  : WeightFormat::kF32;
}

absl::StatusOr<ServingModel> ToServingFormat(const OpRegistry& registry, ServingModel model,
                                             const ModelFacts& facts,
                                             std::optional<WeightFormat> format) {
  const WeightFormat held = PackedFormat(facts);
  if (held == WeightFormat::kF32) {
    return QuantizeServing(registry, std::move(model), format.value_or(held));
  }
  if (format.value_or(held) != held) {
    return absl::FailedPreconditionError(
        absl::StrCat("its weights are packed as ", Name(held), ", but ", Name(*format),
                     " is asked for; leave the format out, or serve what it was made of"));
  }
  absl::StatusOr<ServingModel> packed = QuantizeServing(registry, std::move(model), held);
  if (!packed.ok()) return packed;
  WeightMap weights;
  for (const auto& [name, source] : packed->weights.sources) {
    if (source.pieces.empty()) weights.sources[name] = source;  // filled by other code
  }
  for (const Node& node : packed->graph.nodes()) {
    if (node.op != "quantized_linear") continue;
    const Value& weight = packed->graph.value(node.inputs[1]);
    WeightSource& source = weights.sources[weight.name];
    source = packed->weights.sources.at(weight.name);
    source.pieces = {{weight.name, weight.type.dims, false, 0, weight.type.dims[0]}};
    source.packed = true;
  }
  packed->weights = std::move(weights);
  return packed;
}

}  // namespace espalier
