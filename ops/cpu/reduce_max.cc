#include "ops/cpu/reduce_extreme.h"

namespace espalier {

void RegisterReduceMaxCpu(KernelRegistry& registry) {
  AddExtreme<Lowest>(registry, "reduce_max", [](auto a, auto b) { return a > b; });
}

}  // namespace espalier
