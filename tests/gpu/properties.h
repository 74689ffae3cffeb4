// Properties that a comparison with the CPU does not show: that serving kernels are
// batch-invariant, that Synchronize returns faults, and the plug-in's own copies, fills and
// collectives.
#pragma once

#include <vector>

#include "tests/gpu/backend.h"
#include "tests/gpu/compare.h"

namespace espalier::gpu_check {

std::vector<Verdict> CheckProperties(CudaPlugin* plugin, int device, Backend& cuda);

}  // namespace espalier::gpu_check
