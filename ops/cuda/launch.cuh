// Launching f(i) for every i in [0, n).
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cuda/status.h"

namespace espalier {

constexpr int kThreads = 256;

inline cudaStream_t StreamOf(const KernelArgs& args) {
  return static_cast<cudaStream_t>(args.stream);
}

// Blocks of kThreads threads for n elements; kernels loop where that is not enough.
inline unsigned BlocksFor(int64_t n) {
  return static_cast<unsigned>(std::min<int64_t>((n + kThreads - 1) / kThreads, int64_t{1} << 16));
}

template <typename F>
__global__ void __launch_bounds__(kThreads) ForEachKernel(int64_t n, F f) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += step) {
    f(i);
  }
}

// `f` has `__device__ void operator()(int64_t i) const`.
template <typename F>
KernelStatus ForEach(int64_t n, const F& f, cudaStream_t stream, const char* op) {
  if (n <= 0) return KernelStatus::Ok();
  ForEachKernel<F><<<BlocksFor(n), kThreads, 0, stream>>>(n, f);
  return LaunchStatus(op);
}

}  // namespace espalier
