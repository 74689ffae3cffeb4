// Convolutions by oneDNN, which picks the layouts; operands are reordered around it where they
// differ from plain ones. Any number of spatial dimensions that oneDNN takes (1 to 3).
#pragma once

#include <string>

#include "ops/kernel/kernel.h"

namespace espalier {

// Kernels `name` and `name`_grad.
void AddConvolution(KernelRegistry& registry, const std::string& name);
void AddTransposedConvolution(KernelRegistry& registry, const std::string& name);

}  // namespace espalier
