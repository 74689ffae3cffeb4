// Convolutions of one to three spatial dimensions by oneDNN, which chooses the memory layouts;
// operands are reordered from and to plain layouts where these differ.
#pragma once

#include <string>

#include "ops/kernel/kernel.h"

namespace espalier {

// Adds kernels `name` and `name`_grad.
void AddConvolution(KernelRegistry& registry, const std::string& name);
void AddTransposedConvolution(KernelRegistry& registry, const std::string& name);

}  // namespace espalier
