// Deterministic reductions: within a block by a tree, across blocks by a second pass over partial
// results. No atomics, so that runs repeat bit for bit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/runtime/cuda_status.h"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/tensor/shape.h"

namespace espalier {

// Reduction operators: an operation on values of Type, and its identity.
struct SumOp {
  using Type = float;
  static __device__ __forceinline__ float Identity() { return 0.0f; }
  static __device__ __forceinline__ float Apply(float a, float b) { return a + b; }
};
struct MaxOp {
  using Type = float;
  static __device__ __forceinline__ float Identity() { return -INFINITY; }
  static __device__ __forceinline__ float Apply(float a, float b) { return fmaxf(a, b); }
};

template <typename Op>
__device__ __forceinline__ typename Op::Type WarpReduce(typename Op::Type value) {
#pragma unroll
  for (int lane = 16; lane > 0; lane >>= 1) {
    value = Op::Apply(value, __shfl_xor_sync(0xffffffffu, value, lane));
  }
  return value;
}

// Reduces over all threads of the block (a multiple of 32, at most 1024); returns the result to
// all.
template <typename Op>
__device__ __forceinline__ typename Op::Type BlockReduce(typename Op::Type value) {
  __shared__ typename Op::Type parts[32];
  value = WarpReduce<Op>(value);
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  __syncthreads();  // an earlier call may still be reading
  if (lane == 0) parts[warp] = value;
  __syncthreads();
  value = lane < (blockDim.x >> 5) ? parts[lane] : Op::Identity();
  return WarpReduce<Op>(value);
}

__device__ __forceinline__ float BlockSum(float value) { return BlockReduce<SumOp>(value); }
__device__ __forceinline__ float BlockMax(float value) { return BlockReduce<MaxOp>(value); }

// A dense tensor whose dimensions are kept or reduced.
struct ReduceShape {
  struct Group {
    int rank = 0;
    int64_t size[8] = {};
    int64_t stride[8] = {};

    // Offset in the tensor of the element with row-major number `index` within the group.
    __device__ int64_t Offset(int64_t index) const {
      if (rank == 1) return index * stride[0];
      int64_t offset = 0;
      for (int d = rank - 1; d >= 0; --d) {
        const int64_t next = index / size[d];
        offset += (index - next * size[d]) * stride[d];
        index = next;
      }
      return offset;
    }
  };
  Group kept, summed;
  int64_t outputs = 1;  // number of sums
  int64_t count = 1;    // elements of each
  // Whether adjacent sums read adjacent elements.
  bool by_columns = false;

  // summed_dims[d]: dimension d is summed over.
  static ReduceShape Make(const Dims& dims, const std::vector<bool>& summed_dims) {
    ReduceShape shape;
    int64_t stride = 1;
    int last = -1;  // 0: the previous dimension was kept, 1: summed
    // From the innermost dimension outwards, merges adjacent dimensions of one kind. Builds the
    // list reversed, then reverses it.
    for (size_t i = dims.size(); i-- > 0;) {
      const int64_t size = dims[i];
      const int kind = summed_dims[i] ? 1 : 0;
      (kind == 1 ? shape.count : shape.outputs) *= size;
      if (size == 1) continue;
      Group& group = kind == 1 ? shape.summed : shape.kept;
      if (kind == last) {
        group.size[group.rank - 1] *= size;
      } else {
        if (last < 0) shape.by_columns = kind == 0;
        group.size[group.rank] = size;
        group.stride[group.rank] = stride;
        ++group.rank;
        last = kind;
      }
      stride *= size;
    }
    for (Group* group : {&shape.kept, &shape.summed}) {
      std::reverse(group->size, group->size + group->rank);
      std::reverse(group->stride, group->stride + group->rank);
    }
    if (shape.count <= 64) shape.by_columns = true;
    return shape;
  }

  // Returns into how many chunks each sum is split: a function of the shape; 1 if batch_invariant.
  int64_t Chunks(bool batch_invariant) const {
    if (batch_invariant || outputs == 0) return 1;
    const int64_t least = by_columns ? 64 : 4096;
    const int64_t wanted = by_columns ? 65536 / outputs : 1056 / outputs;
    return std::clamp<int64_t>(std::min(count / least, wanted), 1, 1024);
  }
  template <typename Op = SumOp>
  size_t WorkspaceBytes(bool batch_invariant = false) const {
    const int64_t chunks = Chunks(batch_invariant);
    return chunks == 1 ? 0 : static_cast<size_t>(outputs * chunks) * sizeof(typename Op::Type);
  }
};

// value(i) is the term at element i of the tensor; store(o, sum) stores result o. With several
// chunks the results go to partial[chunk * outputs + o] instead.
template <typename Op, typename Value, typename Store>
__global__ void __launch_bounds__(kThreads)
    ReduceColumnsKernel(ReduceShape shape, Value value, Store store, typename Op::Type* partial,
                        int64_t chunk_size) {
  const int64_t o = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (o >= shape.outputs) return;
  const int64_t base = shape.kept.Offset(o);
  const int64_t begin = blockIdx.y * chunk_size, end = min(shape.count, begin + chunk_size);
  typename Op::Type sum = Op::Identity();
  for (int64_t r = begin; r < end; ++r) {
    sum = Op::Apply(sum, value(base + shape.summed.Offset(r)));
  }
  if (gridDim.y == 1) {
    store(o, sum);
  } else {
    partial[blockIdx.y * shape.outputs + o] = sum;
  }
}

template <typename Op, typename Value, typename Store>
__global__ void __launch_bounds__(kThreads)
    ReduceRowsKernel(ReduceShape shape, Value value, Store store, typename Op::Type* partial,
                     int64_t chunk_size) {
  const int64_t o = blockIdx.x;
  const int64_t base = shape.kept.Offset(o);
  const int64_t begin = blockIdx.y * chunk_size, end = min(shape.count, begin + chunk_size);
  typename Op::Type sum = Op::Identity();
  for (int64_t r = begin + threadIdx.x; r < end; r += kThreads) {
    sum = Op::Apply(sum, value(base + shape.summed.Offset(r)));
  }
  sum = BlockReduce<Op>(sum);
  if (threadIdx.x != 0) return;
  if (gridDim.y == 1) {
    store(o, sum);
  } else {
    partial[blockIdx.y * shape.outputs + o] = sum;
  }
}

template <typename Op, typename Store>
__global__ void __launch_bounds__(kThreads)
    ReduceFinishKernel(int64_t outputs, int64_t chunks, const typename Op::Type* partial,
                       Store store) {
  const int64_t o = blockIdx.x;
  typename Op::Type sum = Op::Identity();
  for (int64_t c = threadIdx.x; c < chunks; c += kThreads) {
    sum = Op::Apply(sum, partial[c * outputs + o]);
  }
  sum = BlockReduce<Op>(sum);
  if (threadIdx.x == 0) store(o, sum);
}

// `workspace` holds shape.WorkspaceBytes<Op>(batch_invariant) bytes.
template <typename Op = SumOp, typename Value, typename Store>
KernelStatus Reduce(const ReduceShape& shape, const Value& value, const Store& store,
                    void* workspace, cudaStream_t stream, const char* op,
                    bool batch_invariant = false) {
  if (shape.outputs == 0) return KernelStatus::Ok();
  const int64_t chunks = shape.Chunks(batch_invariant);
  const int64_t chunk_size = (shape.count + chunks - 1) / chunks;
  typename Op::Type* partial = static_cast<typename Op::Type*>(workspace);
  if (shape.by_columns) {
    const dim3 grid(static_cast<unsigned>((shape.outputs + kThreads - 1) / kThreads),
                    static_cast<unsigned>(chunks));
    ReduceColumnsKernel<Op>
        <<<grid, kThreads, 0, stream>>>(shape, value, store, partial, chunk_size);
  } else {
    const dim3 grid(static_cast<unsigned>(shape.outputs), static_cast<unsigned>(chunks));
    ReduceRowsKernel<Op><<<grid, kThreads, 0, stream>>>(shape, value, store, partial, chunk_size);
  }
  ESPALIER_KERNEL_RETURN_IF_ERROR(LaunchStatus(op));
  if (chunks == 1) return KernelStatus::Ok();
  ReduceFinishKernel<Op><<<static_cast<unsigned>(shape.outputs), kThreads, 0, stream>>>(
      shape.outputs, chunks, partial, store);
  return LaunchStatus(op);
}

// result[o] = factor * sum
template <typename T>
struct StoreScaled {
  T* result;
  float factor;
  __device__ void operator()(int64_t o, float sum) const { result[o] = FromFloat<T>(factor * sum); }
};

// *result = sum / count
struct StoreQuotient {
  float* result;
  double count;
  __device__ void operator()(int64_t, float sum) const {
    *result = static_cast<float>(sum / count);
  }
};

}  // namespace espalier
