#include "ops/cuda/register_all.h"

namespace espalier {

#define ESPALIER_CUDA_KERNEL(Name) void Register##Name##Cuda(KernelRegistry&, DeviceContexts&);
#include "ops/cuda/kernels.inc"
#undef ESPALIER_CUDA_KERNEL

void RegisterCudaKernels(KernelRegistry& registry, DeviceContexts& contexts) {
#define ESPALIER_CUDA_KERNEL(Name) Register##Name##Cuda(registry, contexts);
#include "ops/cuda/kernels.inc"
#undef ESPALIER_CUDA_KERNEL
}

}  // namespace espalier
