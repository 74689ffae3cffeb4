#include "ops/operators/reduce.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterReduceL2(OpRegistry& registry) {
  registry.Add(MakeReduction(
      {.name = "reduce_l2",
       .doc = "y = sqrt(sum of x^2) over axes; its gradient where it is 0 counts as 0",
       .types = ElementTypes("F"),
       .saves_input = true,
       .saves_output = true}));
}

}  // namespace espalier
