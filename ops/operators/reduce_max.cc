#include "ops/operators/reduce.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterReduceMax(OpRegistry& registry) {
  registry.Add(MakeReduction(
      {.name = "reduce_max",
       .doc = "y = the largest x over axes, NaN if there is one; equal ones share the gradient",
       .types = ElementTypes("FISB"),
       .saves_input = true,
       .saves_output = true,
       .precision = Precision::kFollow}));
}

}  // namespace espalier
