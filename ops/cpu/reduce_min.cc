#include "ops/cpu/reduce_min_max.h"

namespace espalier {

void RegisterReduceMinCpu(KernelRegistry& registry) {
  AddExtreme<Highest>(registry, "reduce_min", [](auto a, auto b) { return a < b; });
}

}  // namespace espalier
