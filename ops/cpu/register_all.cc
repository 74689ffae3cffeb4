#include "ops/cpu/register_all.h"

namespace espalier {

#define ESPALIER_KERNEL(Name) void Register##Name##Cpu(KernelRegistry&);
#include "ops/cpu/kernels.inc"
#undef ESPALIER_KERNEL

void RegisterCpuKernels(KernelRegistry& registry) {
#define ESPALIER_KERNEL(Name) Register##Name##Cpu(registry);
#include "ops/cpu/kernels.inc"
#undef ESPALIER_KERNEL
}

}  // namespace espalier
