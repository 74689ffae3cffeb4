// Speed of the kernels that training and serving spend their time in.
#pragma once

#include <string>

#include "ops/cuda/plugin.h"

namespace espalier::gpu_check {

// Prints a table for each operator whose name has `only` in it; returns an error or an empty
// string.
std::string RunBench(CudaPlugin* plugin, int device, const std::string& only);

}  // namespace espalier::gpu_check
