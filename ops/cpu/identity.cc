#include "ops/cpu/layout/copy.h"

namespace espalier {

void RegisterIdentityCpu(KernelRegistry& registry) { AddCopy(registry, "identity"); }

}  // namespace espalier
