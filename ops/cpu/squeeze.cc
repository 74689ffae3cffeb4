#include "ops/cpu/layout/copy.h"

namespace espalier {

void RegisterSqueezeCpu(KernelRegistry& registry) { AddCopy(registry, "squeeze"); }

}  // namespace espalier
