#include "ops/operators/reduce.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterReduceLogSumExp(OpRegistry& registry) {
  registry.Add(MakeReduction({.name = "reduce_log_sum_exp",
                              .doc = "y = log(sum of exp(x)) over axes, without overflow",
                              .types = ElementTypes("F"),
                              .saves_input = true,
                              .saves_output = true}));
}

}  // namespace espalier
