#include "ops/cpu/blocks.h"

namespace espalier {

void RegisterSpaceToDepthCpu(KernelRegistry& registry) {
  AddBlockMove(registry, "space_to_depth", /*to_space=*/false);
}

}  // namespace espalier
