#include "ops/cuda/copy.h"

namespace espalier {

void RegisterUnsqueezeCuda(KernelRegistry& registry, DeviceContexts&) {
  AddCopy(registry, "unsqueeze");
}

}  // namespace espalier
