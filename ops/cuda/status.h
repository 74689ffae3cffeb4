// Results of CUDA, cuBLAS, cuDNN and NCCL as KernelStatus: one function per library.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <nccl.h>

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

inline KernelStatus CublasStatus(cublasStatus_t result, const char* what) {
  if (result == CUBLAS_STATUS_SUCCESS) return KernelStatus::Ok();
  return KernelStatus::Error(std::string(what) + ": " + cublasGetStatusName(result) + ": " +
                             cublasGetStatusString(result));
}

inline KernelStatus CudnnStatus(cudnnStatus_t result, const char* what) {
  if (result == CUDNN_STATUS_SUCCESS) return KernelStatus::Ok();
  return KernelStatus::Error(std::string(what) + ": cuDNN: " + cudnnGetErrorString(result));
}

inline KernelStatus NcclStatus(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return KernelStatus::Ok();
  return KernelStatus::Error(std::string(what) + ": NCCL: " + ncclGetErrorString(result));
}

// To be called right after a launch: reports a bad launch configuration. Failures while the kernel
// runs come out of the device's next Synchronize.
inline KernelStatus LaunchStatus(const char* op) { return CudaStatus(cudaGetLastError(), op); }

}  // namespace espalier
