// Converts results of the CUDA runtime to KernelStatus. The other libraries have their own headers,
// since nearly every kernel includes this one.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "ops/kernel/kernel.h"

#define ESPALIER_KERNEL_RETURN_IF_ERROR(expression)                                     \
  do {                                                                                  \
    if (::espalier::KernelStatus status_ = (expression); !status_.ok()) return status_; \
  } while (false)

namespace espalier {

inline KernelStatus CudaStatus(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return KernelStatus::Ok();
  return KernelStatus::Error(std::string(what) + ": " + cudaGetErrorName(result) + ": " +
                             cudaGetErrorString(result));
}

// Returns an error if the launch just made had a bad configuration. Failures while the kernel runs
// are returned by the device's next Synchronize.
inline KernelStatus LaunchStatus(const char* op) { return CudaStatus(cudaGetLastError(), op); }

}  // namespace espalier
