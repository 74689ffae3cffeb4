#include "ops/operators/reduce.h"
#include "ops/schema/registry.h"

namespace espalier {

void RegisterReduceSum(OpRegistry& registry) {
  registry.Add(MakeReduction("reduce_sum", "y = sum of x over axes"));
}

}  // namespace espalier
