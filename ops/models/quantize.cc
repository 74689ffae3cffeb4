#include "ops/models/quantize.h"

#include <utility>

namespace espalier {

absl::StatusOr<ServingModel> QuantizeServing(const OpRegistry& registry, ServingModel model,
                                             WeightFormat format) {
  absl::StatusOr<Graph> graph = QuantizeLinears(registry, model.graph, format);
  if (!graph.ok()) return graph.status();
  for (const Node& node : graph->nodes()) {
    if (node.op != "quantized_linear") continue;
    const std::string name = node.attributes.String("source");
    const Dims& dims = model.graph.value(model.graph.FindValue(name)).type.dims;
    const auto known = model.weights.sources.find(name);
    WeightSource source = known != model.weights.sources.end()
                              ? known->second
                              : WeightSource{{{name, dims, false, 0, dims[0]}}};
    if (const int bits = static_cast<int>(node.attributes.Int("bits")); bits < 16) {
      source.bits = bits;
      source.out = dims[0];
      source.in = dims[1];
    }
    model.weights.sources[graph->value(node.inputs[1]).name] = std::move(source);
  }
  model.graph = *std::move(graph);
  return model;
}

}  // namespace espalier
