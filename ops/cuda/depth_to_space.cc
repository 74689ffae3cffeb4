#include "ops/cuda/depth_space.h"

namespace espalier {

void RegisterDepthToSpaceCuda(KernelRegistry& registry, DeviceContexts&) {
  AddDepthSpaceCopy(registry, "depth_to_space", /*to_space=*/true);
}

}  // namespace espalier
