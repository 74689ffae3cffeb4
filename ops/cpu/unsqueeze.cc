#include "ops/cpu/copy.h"

namespace espalier {

void RegisterUnsqueezeCpu(KernelRegistry& registry) { AddCopy(registry, "unsqueeze"); }

}  // namespace espalier
