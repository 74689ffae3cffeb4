#include "ops/cpu/layout/copy.h"

namespace espalier {

void RegisterFlattenCpu(KernelRegistry& registry) { AddCopy(registry, "flatten"); }

}  // namespace espalier
