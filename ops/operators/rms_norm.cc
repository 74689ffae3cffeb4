#include "ops/operators/norm.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterRmsNorm(OpRegistry& registry) {
  registry.Add(MakeNorm({.name = "rms_norm",
                         .doc = "x[..., E], weight[E] -> x / sqrt(mean(x^2) + epsilon) * weight",
                         .parameters = {{"weight"}}}));
  registry.Add(MakeNorm({.name = "residual_rms_norm",
                         .doc = "x[..., E], residual (like x), weight[E] -> rms_norm(s), s = x + "
                                "residual",
                         .parameters = {{"weight"}},
                         .residual = true}));
}

}  // namespace espalier
