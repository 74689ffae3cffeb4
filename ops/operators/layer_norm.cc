#include "ops/operators/norm.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterLayerNorm(OpRegistry& registry) {
  const std::vector<Arity> parameters = {{"scale", /*optional=*/true}, {"bias", /*optional=*/true}};
  registry.Add(MakeNorm(
      {.name = "layer_norm",
       .doc = "x[..., E], scale[E]?, bias[E]? -> (x - mean) / sqrt(variance + epsilon) * scale + "
              "bias",
       .parameters = parameters}));
  registry.Add(MakeNorm({.name = "residual_layer_norm",
                         .doc = "x[..., E], residual (like x), scale[E]?, bias[E]? -> "
                                "layer_norm(s), s = x + residual",
                         .parameters = parameters,
                         .residual = true}));
}

}  // namespace espalier
