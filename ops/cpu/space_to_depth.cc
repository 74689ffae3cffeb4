#include "ops/cpu/layout/depth_space.h"

namespace espalier {

void RegisterSpaceToDepthCpu(KernelRegistry& registry) {
  AddDepthSpaceCopy(registry, "space_to_depth", /*to_space=*/false);
}

}  // namespace espalier
