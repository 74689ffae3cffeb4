// Speed of the kernels that training and serving spend their time in.
#pragma once

#include <string>

#include "ops/cuda/plugin.h"

namespace espalier::gpu_check {

// Prints a table; returns an error or an empty string.
std::string RunBench(CudaPlugin* plugin, int device);

}  // namespace espalier::gpu_check
