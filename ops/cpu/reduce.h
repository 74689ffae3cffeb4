// reduce_sum and reduce_mean: the same but for a factor.
#pragma once

#include <string>

#include "ops/kernel/kernel.h"

namespace espalier {

// Kernels `name` and `name`_grad; both multiply by 1 / attribute `count` if it is there.
void AddReduction(KernelRegistry& registry, const std::string& name);

}  // namespace espalier
