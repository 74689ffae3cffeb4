#include "ops/cuda/depth_space.h"

namespace espalier {

void RegisterSpaceToDepthCuda(KernelRegistry& registry, DeviceContexts&) {
  AddDepthSpaceCopy(registry, "space_to_depth", /*to_space=*/false);
}

}  // namespace espalier
