// Converts results of cuBLAS to KernelStatus.
#pragma once

#include <cublas_v2.h>

#include <string>

#include "ops/kernel/kernel.h"

namespace espalier {

inline KernelStatus CublasStatus(cublasStatus_t result, const char* what) {
  if (result == CUBLAS_STATUS_SUCCESS) return KernelStatus::Ok();
  return KernelStatus::Error(std::string(what) + ": " + cublasGetStatusName(result) + ": " +
                             cublasGetStatusString(result));
}

}  // namespace espalier
