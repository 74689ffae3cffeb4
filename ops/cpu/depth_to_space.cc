#include "ops/cpu/layout/depth_space.h"

namespace espalier {

void RegisterDepthToSpaceCpu(KernelRegistry& registry) {
  AddDepthSpaceCopy(registry, "depth_to_space", /*to_space=*/true);
}

}  // namespace espalier
