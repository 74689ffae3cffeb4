// Integer inputs that select among several: labels, ids and indices.
#pragma once

#include <cstdint>

#include "ops/cuda/runtime/device_fault.h"
#include "ops/kernel/kernel.h"

namespace espalier {

// An i32 or i64 tensor on the device.
struct Integers {
  const int32_t* narrow = nullptr;
  const int64_t* wide = nullptr;

  static Integers Of(const TensorView& view) {
    Integers integers;
    if (view.dtype() == DType::kI64) {
      integers.wide = view.as<int64_t>();
    } else {
      integers.narrow = view.as<int32_t>();
    }
    return integers;
  }

#ifdef __CUDACC__
  __device__ int64_t operator[](int64_t i) const { return wide != nullptr ? wide[i] : narrow[i]; }
#endif
};

}  // namespace espalier
