#include "ops/cpu/reduce.h"

namespace espalier {

void RegisterReduceMeanCpu(KernelRegistry& registry) { AddReduction(registry, "reduce_mean"); }

}  // namespace espalier
