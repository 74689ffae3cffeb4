#include <cub/block/block_scan.cuh>

#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/runtime/register.h"
#include "ops/kernel/axis_lines.h"

namespace espalier {
namespace cuda_cumsum {

// The accumulator type: wide enough for long sums to stay accurate; integers wrap.
template <typename T>
struct Running {
  using Type = double;
  static __device__ Type Load(T x) { return static_cast<double>(ToFloat(x)); }
  static __device__ T Store(Type x) { return FromFloat<T>(static_cast<float>(x)); }
};
template <>
struct Running<int32_t> : Compute<int32_t> {};
template <>
struct Running<int64_t> : Compute<int64_t> {};

constexpr int kItems = 8;

// One block per contiguous line, piece by piece in a fixed order.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    ScanLineKernel(const T* x, T* y, int64_t length, bool exclusive, bool reverse) {
  using Sum = typename Running<T>::Type;
  using Scan = cub::BlockScan<Sum, kThreads>;
  __shared__ typename Scan::TempStorage storage;
  x += blockIdx.x * length;
  y += blockIdx.x * length;
  Sum before = 0;  // of the pieces so far
  for (int64_t piece = 0; piece < length; piece += kThreads * kItems) {
    const int64_t first = piece + threadIdx.x * kItems;
    Sum values[kItems];
    Sum mine = 0;
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const int64_t j = first + k;
      values[k] = j < length ? Running<T>::Load(x[reverse ? length - 1 - j : j]) : Sum(0);
      mine += values[k];
    }
    Sum sum, total;
    Scan(storage).ExclusiveSum(mine, sum, total);
    __syncthreads();  // the storage is used again
    sum += before;
    before += total;
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const int64_t j = first + k;
      const Sum until = sum;
      sum += values[k];
      if (j < length) y[reverse ? length - 1 - j : j] = Running<T>::Store(exclusive ? until : sum);
    }
  }
}

// One thread per line; neighbours read neighbouring elements.
template <typename T>
struct ScanColumn {
  const T* x;
  T* y;
  AxisLines lines;
  bool exclusive, reverse;
  __device__ void operator()(int64_t line) const {
    const int64_t start = line / lines.inner * lines.length * lines.inner + line % lines.inner;
    typename Running<T>::Type sum = 0;
    for (int64_t j = 0; j < lines.length; ++j) {
      const int64_t at = start + (reverse ? lines.length - 1 - j : j) * lines.inner;
      const auto until = sum;
      sum += Running<T>::Load(x[at]);
      y[at] = Running<T>::Store(exclusive ? until : sum);
    }
  }
};

// The gradient is the cumulative sum of dy from the other end.
void Add(KernelRegistry& registry, const char* name, bool turned) {
  registry.Add(name, [=](const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
    if (!TakesNumber(spec.inputs[0].dtype, refusal)) return nullptr;
    const int64_t axis = spec.attributes.Int("axis");
    const bool exclusive = spec.attributes.Bool("exclusive");
    const bool reverse = spec.attributes.Bool("reverse") != turned;
    return MakeKernel([=](const KernelArgs& args) {
      const TensorView &x = args.inputs[0], &y = args.outputs[0];
      if (!y.present() || y.num_elements() == 0) return KernelStatus::Ok();
      const AxisLines lines(x.dims(), axis);
      return DispatchNumber(x.dtype(), name, [&](auto type) {
        using T = typename decltype(type)::T;
        if (lines.inner > 1) {
          return ForEach(lines.count(),
                         ScanColumn<T>{x.as<T>(), y.as<T>(), lines, exclusive, reverse},
                         StreamOf(args), name);
        }
        ScanLineKernel<T><<<static_cast<unsigned>(lines.outer), kThreads, 0, StreamOf(args)>>>(
            x.as<T>(), y.as<T>(), lines.length, exclusive, reverse);
        return LaunchStatus(name);
      });
    });
  });
}

}  // namespace cuda_cumsum

void RegisterCumsumCuda(KernelRegistry& registry, DeviceContexts&) {
  using namespace cuda_cumsum;
  Add(registry, "cumsum", false);
  Add(registry, "cumsum_grad", true);
}

}  // namespace espalier
