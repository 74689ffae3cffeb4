#include "ops/cpu/reduce_min_max.h"

namespace espalier {

void RegisterReduceMaxCpu(KernelRegistry& registry) {
  AddExtreme<Lowest>(registry, "reduce_max", [](auto a, auto b) { return a > b; });
}

}  // namespace espalier
