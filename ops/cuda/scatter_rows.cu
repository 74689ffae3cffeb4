#include <cub/device/device_radix_sort.cuh>
#include <limits>

#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/scatter_rows.h"

namespace espalier {
namespace {

// key = local row, or `rows` for an index that adds nothing.
struct MakeKey {
  ScatterProblem p;
  FaultSink faults;
  uint32_t* keys;
  uint32_t* positions;
  __device__ void operator()(int64_t i) const {
    int64_t index = p.indices[i];
    const bool skipped = p.skips && index == p.skipped;
    const bool valid = !skipped && index < p.limit && index >= (p.from_end ? -p.limit : int64_t{0});
    if (!valid && !skipped) faults.Report(p.fault, i, index, p.limit);
    if (index < 0) index += p.limit;
    const int64_t row = index - p.offset;
    keys[i] = static_cast<uint32_t>(valid && row >= 0 && row < p.rows ? row : p.rows);
    positions[i] = static_cast<uint32_t>(i);
  }
};

// Block (x, y): the run of equal keys that starts at x, if one does; columns from y on.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    AddRunsKernel(const uint32_t* keys, const uint32_t* positions, int64_t count, int64_t rows,
                  int64_t outer, int64_t inner, int64_t repeat, const float* weights, const T* dy,
                  T* dx) {
  const int64_t begin = blockIdx.x;
  const uint32_t key = keys[begin];
  if (key >= rows || (begin > 0 && keys[begin - 1] == key)) return;
  int64_t end = begin + 1;
  while (end < count && keys[end] == key) ++end;
  const int64_t step = static_cast<int64_t>(gridDim.y) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x; i < outer * inner;
       i += step) {
    const int64_t o = i / inner, column = i % inner;
    float sum = 0;
    for (int64_t at = begin; at < end; ++at) {
      const int64_t place = positions[at];
      const float value = ToFloat(dy[(o * (count / repeat) + place / repeat) * inner + column]);
      sum += weights == nullptr ? value : weights[place] * value;
    }
    dx[(o * rows + key) * inner + column] = FromFloat<T>(sum);
  }
}

}  // namespace

std::shared_ptr<RowScatter> RowScatter::Make(int64_t count, int64_t rows, std::string* refusal) {
  const int64_t most = std::numeric_limits<int32_t>::max();
  if (count > most || rows >= most) {
    *refusal = "more than 2^31 rows";
    return nullptr;
  }
  auto scatter = std::make_shared<RowScatter>();
  scatter->bits_ = 1;
  while ((int64_t{1} << scatter->bits_) <= rows) ++scatter->bits_;
  uint32_t* none = nullptr;
  const KernelStatus asked = CudaStatus(
      cub::DeviceRadixSort::SortPairs(nullptr, scatter->temporary_bytes_, none, none, none, none,
                                      static_cast<int>(count), 0, scatter->bits_),
      "size of the sort's workspace");
  if (!asked.ok()) {
    *refusal = asked.error;
    return nullptr;
  }
  const size_t bytes = static_cast<size_t>(count) * sizeof(uint32_t);
  scatter->keys_ = scatter->layout_.Add(bytes);
  scatter->sorted_keys_ = scatter->layout_.Add(bytes);
  scatter->places_ = scatter->layout_.Add(bytes);
  scatter->sorted_positions_ = scatter->layout_.Add(bytes);
  scatter->temporary_ = scatter->layout_.Add(scatter->temporary_bytes_);
  return scatter;
}

KernelStatus RowScatter::Run(const ScatterProblem& problem, const TensorView& dy,
                             const TensorView& dx, const FaultSink& faults,
                             const KernelArgs& args) const {
  const cudaStream_t stream = StreamOf(args);
  ESPALIER_KERNEL_RETURN_IF_ERROR(
      CudaStatus(cudaMemsetAsync(dx.data, 0, static_cast<size_t>(dx.spec.bytes()), stream),
                 "cudaMemsetAsync"));
  if (problem.count == 0 || dx.num_elements() == 0) return KernelStatus::Ok();
  uint32_t* keys = WorkspaceAt<uint32_t>(args, keys_);
  uint32_t* sorted_keys = WorkspaceAt<uint32_t>(args, sorted_keys_);
  uint32_t* positions = WorkspaceAt<uint32_t>(args, places_);
  uint32_t* sorted_positions = WorkspaceAt<uint32_t>(args, sorted_positions_);
  ESPALIER_KERNEL_RETURN_IF_ERROR(
      ForEach(problem.count, MakeKey{problem, faults, keys, positions}, stream, "scatter"));
  size_t temporary_bytes = temporary_bytes_;
  ESPALIER_KERNEL_RETURN_IF_ERROR(
      CudaStatus(cub::DeviceRadixSort::SortPairs(WorkspaceAt(args, temporary_), temporary_bytes,
                                                 keys, sorted_keys, positions, sorted_positions,
                                                 static_cast<int>(problem.count), 0, bits_, stream),
                 "scatter: sort"));
  return DispatchFloat(dx.dtype(), "scatter", [&](auto type) {
    using T = typename decltype(type)::T;
    const int64_t columns = (problem.outer * problem.inner + kThreads - 1) / kThreads;
    const dim3 grid(static_cast<unsigned>(problem.count),
                    static_cast<unsigned>(std::min<int64_t>(columns, 1024)));
    AddRunsKernel<T><<<grid, kThreads, 0, stream>>>(
        sorted_keys, sorted_positions, problem.count, problem.rows, problem.outer, problem.inner,
        problem.repeat, problem.weights, dy.as<T>(), dx.as<T>());
    return LaunchStatus("scatter");
  });
}

}  // namespace espalier
