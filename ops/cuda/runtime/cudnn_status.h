// Converts results of cuDNN to KernelStatus.
#pragma once

#include <cudnn.h>

#include <string>

#include "ops/kernel/kernel.h"

namespace espalier {

inline KernelStatus CudnnStatus(cudnnStatus_t result, const char* what) {
  if (result == CUDNN_STATUS_SUCCESS) return KernelStatus::Ok();
  return KernelStatus::Error(std::string(what) + ": cuDNN: " + cudnnGetErrorString(result));
}

}  // namespace espalier
