#include "ops/cpu/reduce.h"

namespace espalier {

void RegisterReduceSumCpu(KernelRegistry& registry) { AddReduction(registry, "reduce_sum"); }

}  // namespace espalier
