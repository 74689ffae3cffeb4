// Convolutions by cuDNN over one to three spatial dimensions.
#pragma once

#include "ops/cuda/runtime/register.h"

namespace espalier {

// Adds kernels `name` and `name`_grad; `name` must be a literal.
void AddConvolution(KernelRegistry& registry, DeviceContexts& contexts, const char* name);
void AddTransposedConvolution(KernelRegistry& registry, DeviceContexts& contexts, const char* name);

}  // namespace espalier
