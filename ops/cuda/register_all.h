#pragma once

#include "ops/cuda/runtime/device_context.h"
#include "ops/kernel/kernel.h"

namespace espalier {

// Adds every kernel of this folder (kernels.inc, made by BUILD). `contexts` must outlive the
// registry and its kernels.
void RegisterCudaKernels(KernelRegistry& registry, DeviceContexts& contexts);

}  // namespace espalier
