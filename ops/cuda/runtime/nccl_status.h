// Converts results of NCCL to KernelStatus.
#pragma once

#include <nccl.h>

#include <string>

#include "ops/kernel/kernel.h"

namespace espalier {

inline KernelStatus NcclStatus(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return KernelStatus::Ok();
  return KernelStatus::Error(std::string(what) + ": NCCL: " + ncclGetErrorString(result));
}

}  // namespace espalier
