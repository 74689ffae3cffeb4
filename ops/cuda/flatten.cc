#include "ops/cuda/copy.h"

namespace espalier {

void RegisterFlattenCuda(KernelRegistry& registry, DeviceContexts&) {
  AddCopy(registry, "flatten");
}

}  // namespace espalier
