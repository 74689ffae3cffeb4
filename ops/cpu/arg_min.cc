#include "ops/cpu/arg_extreme.h"

namespace espalier {

void RegisterArgMinCpu(KernelRegistry& registry) {
  AddArgExtreme<Highest>(registry, "arg_min", [](auto a, auto b) { return a < b; });
}

}  // namespace espalier
