// Kernel launches: one thread per element, and programmatic dependent launch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cuda/runtime/cuda_status.h"
#include "ops/cuda/runtime/ptx.cuh"

namespace espalier {

constexpr int kThreads = 256;

inline cudaStream_t StreamOf(const KernelArgs& args) {
  return static_cast<cudaStream_t>(args.stream);
}

// Returns the number of blocks of kThreads threads for n elements, at most 2^16: kernels loop over
// the rest.
inline unsigned BlocksFor(int64_t n) {
  return static_cast<unsigned>(std::min<int64_t>((n + kThreads - 1) / kThreads, int64_t{1} << 16));
}

// Launches a kernel that may begin before the previous one ends: see LaunchDependentGrids
// (ptx.cuh).
template <typename... Parameters, typename... Arguments>
KernelStatus LaunchWithPdl(void (*kernel)(Parameters...), dim3 grid, unsigned threads,
                           size_t shared_bytes, cudaStream_t stream, const char* op,
                           const Arguments&... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return CudaStatus(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), op);
}

template <typename F>
__global__ void __launch_bounds__(kThreads) ForEachKernel(int64_t n, F f) {
  LaunchDependentGrids();
  WaitOnDependentGrids();
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += step) {
    f(i);
  }
}

// Runs f(i) on the device for every i in [0, n). F: `__device__ void operator()(int64_t i) const`.
template <typename F>
KernelStatus ForEach(int64_t n, const F& f, cudaStream_t stream, const char* op) {
  if (n <= 0) return KernelStatus::Ok();
  return LaunchWithPdl(ForEachKernel<F>, dim3(BlocksFor(n)), kThreads, 0, stream, op, n, f);
}

}  // namespace espalier
