// All kernels of the CPU backend.
#pragma once

#include "ops/kernel/kernel.h"

namespace espalier {

// Adds the kernels of every file of this folder (kernels.inc, made by BUILD), forward and backward.
void RegisterCpuKernels(KernelRegistry& registry);

}  // namespace espalier
