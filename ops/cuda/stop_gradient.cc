#include "ops/cuda/copy.h"

namespace espalier {

void RegisterStopGradientCuda(KernelRegistry& registry, DeviceContexts&) {
  registry.Add("stop_gradient", CopyFactory("stop_gradient"));
}

}  // namespace espalier
