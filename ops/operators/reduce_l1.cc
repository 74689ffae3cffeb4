#include "ops/operators/reduce.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterReduceL1(OpRegistry& registry) {
  registry.Add(MakeReduction({.name = "reduce_l1",
                              .doc = "y = sum of |x| over axes; integers wrap",
                              .types = ElementTypes("FI"),
                              .is_sum = true,
                              .saves_input = true}));
}

}  // namespace espalier
