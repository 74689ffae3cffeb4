// Copies of boxes between tensors in host memory.
#pragma once

#include "ops/tensor/box_copy.h"

namespace espalier {

// Carries out `copy` between two dense tensors in host memory.
void CopyBoxOnHost(const BoxCopy& copy);

}  // namespace espalier
