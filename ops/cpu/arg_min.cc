#include "ops/cpu/arg_min_max.h"

namespace espalier {

void RegisterArgMinCpu(KernelRegistry& registry) {
  AddArgExtreme<Highest>(registry, "arg_min", [](auto a, auto b) { return a < b; });
}

}  // namespace espalier
