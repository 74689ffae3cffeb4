#include "ops/cpu/copy.h"

namespace espalier {

void RegisterReshapeCpu(KernelRegistry& registry) { AddCopy(registry, "reshape"); }

}  // namespace espalier
