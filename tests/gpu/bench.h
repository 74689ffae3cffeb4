// Benchmarks of the kernels that dominate training and serving.
#pragma once

#include <string>

#include "ops/cuda/runtime/plugin.h"

namespace espalier::gpu_check {

// Prints a table for each operator whose name contains `only`. Returns an error, or an empty
// string.
std::string RunBench(CudaPlugin* plugin, int device, const std::string& only);

}  // namespace espalier::gpu_check
