#include "ops/cpu/layout/copy.h"

namespace espalier {

void RegisterUnsqueezeCpu(KernelRegistry& registry) { AddCopy(registry, "unsqueeze"); }

}  // namespace espalier
