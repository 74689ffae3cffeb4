// Gather and scatter by a tensor of indices: shared by gather_*, scatter_* and their gradients.
#pragma once

#include <memory>
#include <string>
#include <type_traits>

#include "ops/cuda/element_bits.cuh"
#include "ops/cuda/labels.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/cuda/stable_index_sort.h"
#include "ops/cuda/strided.h"

namespace espalier {

// Normalizes `index` to [0, limit); negative ones count from the end. Reports a fault and returns
// -1 if it is out of range.
__device__ inline int64_t PlaceOf(int64_t index, int64_t limit, int64_t position, FaultKind kind,
                                  const FaultSink& faults) {
  if (index >= 0 && index < limit) return index;
  if (index < 0 && index >= -limit) return index + limit;
  faults.Report(kind, position, index, limit);
  return -1;
}

// For gather_elements and scatter_elements: the offset in x that element i of the indices selects,
// or -1.
struct ElementTarget {
  Integers indices;
  FaultSink faults;
  FaultKind kind = FaultKind::kNone;
  int64_t limit = 0, along = 0;  // size and stride of the axis in x
  int rank = 0;
  int64_t size[8] = {}, stride[8] = {};  // of the indices; in x, 0 for the axis

  ElementTarget(const TensorView& indices, const Dims& x, size_t axis, FaultKind kind,
                const FaultSink& faults)
      : indices(Integers::Of(indices)), faults(faults), kind(kind) {
    const Dims strides = DenseStrides(x);
    rank = static_cast<int>(x.size());
    for (int d = 0; d < rank; ++d) {
      size[d] = indices.dims()[d];
      stride[d] = d == static_cast<int>(axis) ? 0 : strides[d];
    }
    limit = x[axis];
    along = strides[axis];
  }

  __device__ int64_t operator()(int64_t i) const {
    const int64_t place = PlaceOf(indices[i], limit, i, kind, faults);
    if (place < 0) return -1;
    int64_t target = place * along, rest = i;
    for (int d = rank - 1; d >= 0; --d) {
      target += rest % size[d] * stride[d];
      rest /= size[d];
    }
    return target;
  }
};

// For gather_nd and scatter_nd, which view x as [batch, rows, inner]: the row, counted over all
// batches, that tuple t of the indices selects, or -1.
struct TupleTarget {
  Integers indices;
  FaultSink faults;
  FaultKind kind = FaultKind::kNone;
  int64_t tuples = 1;  // per batch
  int64_t batch = 1, rows = 1, inner = 1;
  int depth = 0;
  int64_t limits[8] = {};

  TupleTarget(const TensorView& indices, const Dims& x, int64_t batch_dims, FaultKind kind,
              const FaultSink& faults)
      : TupleTarget(indices.dims(), x, batch_dims) {
    this->indices = Integers::Of(indices);
    this->faults = faults;
    this->kind = kind;
  }
  // From the shapes alone, to compute sizes.
  TupleTarget(const Dims& indices, const Dims& x, int64_t batch_dims)
      : depth(static_cast<int>(indices.back())) {
    for (int64_t d = 0; d < batch_dims; ++d) batch *= x[d];
    for (size_t d = batch_dims; d + 1 < indices.size(); ++d) tuples *= indices[d];
    for (int d = 0; d < depth; ++d) {
      limits[d] = x[batch_dims + d];
      rows *= limits[d];
    }
    for (size_t d = batch_dims + depth; d < x.size(); ++d) inner *= x[d];
  }

  __device__ int64_t operator()(int64_t t) const {
    int64_t row = t / tuples;
    for (int d = 0; d < depth; ++d) {
      const int64_t at = t * depth + d;
      const int64_t place = PlaceOf(indices[at], limits[d], at, kind, faults);
      if (place < 0) return -1;
      row = row * limits[d] + place;
    }
    return row;
  }
};

// y[i] = x[target of i / inner], by bits; 0 where there is none.
template <typename T, typename Target>
struct GatherRow {
  Target target;
  const T* x;
  T* y;
  int64_t inner;
  __device__ void operator()(int64_t i) const {
    const int64_t row = target(i / inner);
    y[i] = row < 0 ? T(0) : x[row * inner + i % inner];
  }
};

template <typename Target>
KernelStatus Gather(const Target& target, int64_t inner, const TensorView& x, const TensorView& y,
                    cudaStream_t stream, const char* op) {
  return DispatchBits(y.dtype(), op, [&](auto type) {
    using T = typename decltype(type)::T;
    return ForEach(y.num_elements(), GatherRow<T, Target>{target, x.as<T>(), y.as<T>(), inner},
                   stream, op);
  });
}

template <typename Target>
struct FillKeys {
  Target target;
  uint32_t none;
  uint32_t* keys;
  uint32_t* positions;
  __device__ void operator()(int64_t i) const {
    const int64_t found = target(i);
    keys[i] = found < 0 ? none : static_cast<uint32_t>(found);
    positions[i] = static_cast<uint32_t>(i);
  }
};

template <typename Body>
struct VisitRun {
  const uint32_t* keys;
  const uint32_t* positions;
  int64_t count, inner;
  uint32_t none;
  Body body;
  __device__ void operator()(int64_t n) const {
    const int64_t first = n / inner, column = n % inner;
    const uint32_t key = keys[first];
    if (key == none || (first > 0 && keys[first - 1] == key)) return;
    int64_t end = first + 1;
    while (end < count && keys[end] == key) ++end;
    body(static_cast<int64_t>(key) * inner + column, positions + first, end - first, inner, column);
  }
};

// Calls body(offset of the target, positions, number of positions, inner, column) on the device for
// every element of every row of x that is the target of a position; positions are in order.
template <typename Target, typename Body>
KernelStatus ForTargets(const StableIndexSort& sort, const Target& target, int64_t inner,
                        const Body& body, const KernelArgs& args, const char* op) {
  const uint32_t none = static_cast<uint32_t>(sort.targets());
  ESPALIER_KERNEL_RETURN_IF_ERROR(
      ForEach(sort.count(), FillKeys<Target>{target, none, sort.keys(args), sort.positions(args)},
              StreamOf(args), op));
  ESPALIER_KERNEL_RETURN_IF_ERROR(sort.Sort(args));
  return ForEach(sort.count() * inner,
                 VisitRun<Body>{sort.sorted_keys(args), sort.sorted_positions(args), sort.count(),
                                inner, none, body},
                 StreamOf(args), op);
}

// to[target] = the sum of `from` over its positions.
template <typename T>
struct SumPlaces {
  const T* from;
  T* to;
  __device__ void operator()(int64_t target, const uint32_t* positions, int64_t n, int64_t inner,
                             int64_t column) const {
    float sum = 0;
    for (int64_t k = 0; k < n; ++k) sum += ToFloat(from[positions[k] * inner + column]);
    to[target] = FromFloat<T>(sum);
  }
};

// The gradient of a gather: dx is 0 but for the sums of dy.
template <typename Target>
KernelStatus GatherGradient(const StableIndexSort& sort, const Target& target, int64_t inner,
                            const TensorView& dy, const TensorView& dx, const KernelArgs& args,
                            const char* op) {
  ESPALIER_KERNEL_RETURN_IF_ERROR(
      FillOnStream(dx.data, dx.dtype(), dx.num_elements(), 0, StreamOf(args)));
  return DispatchFloat(dx.dtype(), op, [&](auto type) {
    using T = typename decltype(type)::T;
    return ForTargets(sort, target, inner, SumPlaces<T>{dy.as<T>(), dx.as<T>()}, args, op);
  });
}

// y[target] = the last of its updates.
template <typename T>
struct TakeLast {
  const T* updates;
  T* y;
  __device__ void operator()(int64_t target, const uint32_t* positions, int64_t n, int64_t inner,
                             int64_t column) const {
    y[target] = updates[positions[n - 1] * inner + column];
  }
};

struct AddUpdate {
  template <typename V>
  __device__ V operator()(V old, V update) const {
    return old + update;
  }
};
struct MultiplyUpdate {
  template <typename V>
  __device__ V operator()(V old, V update) const {
    return old * update;
  }
};
struct MaximumUpdate {
  template <typename V>
  __device__ V operator()(V old, V update) const {
    return update > old || update != update ? update : old;
  }
};
struct MinimumUpdate {
  template <typename V>
  __device__ V operator()(V old, V update) const {
    return update < old || update != update ? update : old;
  }
};

// Loads an element for an update: as f32, or as an integer (whose sums wrap).
template <typename T>
__device__ __forceinline__ auto LoadUpdated(T x) {
  if constexpr (std::is_integral_v<T>) {
    return x;
  } else {
    return ToFloat(x);
  }
}
template <typename T, typename V>
__device__ __forceinline__ T StoreUpdated(V x) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(x);
  } else {
    return FromFloat<T>(x);
  }
}

// y[target] combined with its updates, one after the other.
template <typename T, typename F>
struct CombinePlaces {
  const T* updates;
  T* y;
  F f;
  __device__ void operator()(int64_t target, const uint32_t* positions, int64_t n, int64_t inner,
                             int64_t column) const {
    auto value = LoadUpdated(y[target]);
    for (int64_t k = 0; k < n; ++k) {
      value = f(value, LoadUpdated(updates[positions[k] * inner + column]));
    }
    y[target] = StoreUpdated<T>(value);
  }
};

// Uses unsigned integers, since overflow of signed ones is undefined.
template <typename Function>
KernelStatus DispatchUpdated(DType dtype, bool wraps, const char* op, Function function) {
  if (dtype == DType::kI32 && wraps) return function(TypeTag<uint32_t>());
  if (dtype == DType::kI64 && wraps) return function(TypeTag<uint64_t>());
  return DispatchNumber(dtype, op, function);
}

// y = x, and the updates.
template <typename Target>
KernelStatus Scatter(const StableIndexSort& sort, const Target& target, int64_t inner,
                     const std::string& reduction, const KernelArgs& args, const char* op) {
  const TensorView &x = args.inputs[0], &updates = args.inputs[2], &y = args.outputs[0];
  if (y.num_elements() > 0) {
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(y.data, x.data, static_cast<size_t>(y.spec.bytes()),
                                   cudaMemcpyDeviceToDevice, StreamOf(args)),
                   op));
  }
  if (reduction == "none") {
    return DispatchBits(y.dtype(), op, [&](auto type) {
      using T = typename decltype(type)::T;
      return ForTargets(sort, target, inner, TakeLast<T>{updates.as<T>(), y.as<T>()}, args, op);
    });
  }
  const auto combine = [&](auto f, bool wraps) {
    return DispatchUpdated(y.dtype(), wraps, op, [&](auto type) {
      using T = typename decltype(type)::T;
      return ForTargets(sort, target, inner,
                        CombinePlaces<T, decltype(f)>{updates.as<T>(), y.as<T>(), f}, args, op);
    });
  };
  if (reduction == "add") return combine(AddUpdate(), true);
  if (reduction == "multiply") return combine(MultiplyUpdate(), true);
  if (reduction == "maximum") return combine(MaximumUpdate(), false);
  return combine(MinimumUpdate(), false);
}

// Without a reduction only the last update of an element has a gradient; the element itself has
// none. Either of dx and d_updates may be null.
template <typename T>
struct TakeLastGradient {
  const T* dy;
  T* dx;
  T* d_updates;
  __device__ void operator()(int64_t target, const uint32_t* positions, int64_t n, int64_t inner,
                             int64_t column) const {
    if (dx != nullptr) dx[target] = T(0);
    if (d_updates == nullptr) return;
    for (int64_t k = 0; k < n; ++k) {
      d_updates[positions[k] * inner + column] = k == n - 1 ? dy[target] : T(0);
    }
  }
};

// indices, dy -> dx, d_updates. `sort` is null if the reduction is an addition.
template <typename Target>
KernelStatus ScatterGradient(const StableIndexSort* sort, const Target& target, int64_t inner,
                             const KernelArgs& args, const char* op) {
  const TensorView &dy = args.inputs[1], &dx = args.outputs[0], &updates = args.outputs[1];
  if (dx.present() && dx.num_elements() > 0) {
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(dx.data, dy.data, static_cast<size_t>(dx.spec.bytes()),
                                   cudaMemcpyDeviceToDevice, StreamOf(args)),
                   op));
  }
  if (sort == nullptr) {
    return updates.present() ? Gather(target, inner, dy, updates, StreamOf(args), op)
                             : KernelStatus::Ok();
  }
  return DispatchBits(dy.dtype(), op, [&](auto type) {
    using T = typename decltype(type)::T;
    return ForTargets(*sort, target, inner,
                      TakeLastGradient<T>{dy.as<T>(), dx.as<T>(), updates.as<T>()}, args, op);
  });
}

// Returns false and sets *refusal if the gradient is not supported.
inline bool HasScatterGradient(const KernelSpec& spec, std::string* refusal) {
  const std::string reduction = spec.attributes.String("reduction");
  if (reduction == "none" || reduction == "add") return true;
  *refusal = "reduction '" + reduction + "' has no gradient";
  return false;
}

}  // namespace espalier
