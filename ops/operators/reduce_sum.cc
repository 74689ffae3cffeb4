#include "ops/operators/reduce.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterReduceSum(OpRegistry& registry) {
  registry.Add(MakeReduction({.name = "reduce_sum",
                              .doc = "y = sum of x over axes; integers wrap",
                              .types = ElementTypes("FI"),
                              .is_sum = true}));
}

}  // namespace espalier
