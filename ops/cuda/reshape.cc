#include "ops/cuda/copy.h"

namespace espalier {

void RegisterReshapeCuda(KernelRegistry& registry, DeviceContexts&) {
  AddCopy(registry, "reshape");
}

}  // namespace espalier
