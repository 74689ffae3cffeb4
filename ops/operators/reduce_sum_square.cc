#include "ops/operators/reduce.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterReduceSumSquare(OpRegistry& registry) {
  registry.Add(MakeReduction({.name = "reduce_sum_square",
                              .doc = "y = sum of x^2 over axes; integers wrap",
                              .types = ElementTypes("FI"),
                              .is_sum = true,
                              .saves_input = true}));
}

}  // namespace espalier
