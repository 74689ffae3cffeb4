#include "ops/operators/reduce.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterReduceProd(OpRegistry& registry) {
  registry.Add(MakeReduction({.name = "reduce_prod",
                              .doc = "y = product of x over axes; integers wrap",
                              .types = ElementTypes("FI"),
                              .saves_input = true}));
}

}  // namespace espalier
