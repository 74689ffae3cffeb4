#include "ops/cpu/arg_min_max.h"

namespace espalier {

void RegisterArgMaxCpu(KernelRegistry& registry) {
  AddArgExtreme<Lowest>(registry, "arg_max", [](auto a, auto b) { return a > b; });
}

}  // namespace espalier
