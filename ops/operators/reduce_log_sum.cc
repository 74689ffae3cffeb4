#include "ops/operators/reduce.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterReduceLogSum(OpRegistry& registry) {
  registry.Add(MakeReduction({.name = "reduce_log_sum",
                              .doc = "y = log(sum of x) over axes",
                              .types = ElementTypes("F"),
                              .saves_output = true}));
}

}  // namespace espalier
