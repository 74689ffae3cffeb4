#include "ops/cpu/blocks.h"

namespace espalier {

void RegisterDepthToSpaceCpu(KernelRegistry& registry) {
  AddBlockMove(registry, "depth_to_space", /*to_space=*/true);
}

}  // namespace espalier
