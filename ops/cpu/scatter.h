// Gather and scatter by a tensor of indices: shared by gather_*, scatter_* and their gradients.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/dtype/element.h"
#include "ops/cpu/labels.h"
#include "ops/cpu/layout/strided.h"
#include "ops/cpu/threading/parallel.h"
#include "ops/kernel/kernel.h"

namespace espalier {

// An i32 or i64 tensor of indices; negative ones count from the end. Remembers the first element
// that is out of range.
class ScatterIndices {
 public:
  ScatterIndices(std::string op, const TensorView& indices)
      : op_(std::move(op)), indices_(indices) {}

  // Returns the index of element i in [0, limit), or -1 if it is out of range.
  int64_t At(int64_t i, int64_t limit) {
    const int64_t place = IntegerAt(indices_, i);
    if (place >= 0 && place < limit) return place;
    if (place < 0 && place >= -limit) return place + limit;
    int64_t first = bad_.load();
    while ((first < 0 || i < first) && !bad_.compare_exchange_weak(first, i)) {
    }
    return -1;
  }

  // Returns an error if an element was out of range. limit(i): the exclusive bound of element i.
  template <typename Limit>
  KernelStatus Status(const Limit& limit) const {
    const int64_t i = bad_.load();
    if (i < 0) return KernelStatus::Ok();
    const int64_t places = limit(i);
    return KernelStatus::Error(op_ + ": indices" + PlaceInWhole(indices_, i) + " is " +
                               std::to_string(IntegerAt(indices_, i)) +
                               (places == 0 ? ", but there is nothing to choose from"
                                            : ", accepted are " + std::to_string(-places) + " to " +
                                                  std::to_string(places - 1)));
  }

 private:
  const std::string op_;
  const TensorView indices_;
  std::atomic<int64_t> bad_ = -1;
};

// Calls f(i, target) for every element i of `indices`, where `target` is the offset in x of the
// element with the same coordinates, except indices[i] along `axis`. One thread visits each line
// along `axis` in order (`backwards`: from the last element on).
template <bool backwards = false, typename F>
KernelStatus ForElements(const std::string& op, const TensorView& indices, const Dims& x,
                         size_t axis, const F& f) {
  ScatterIndices places(op, indices);
  const int64_t limit = x[axis], length = indices.dims()[axis];
  Dims others = indices.dims(), index_strides = DenseStrides(indices.dims()),
       x_strides = DenseStrides(x);
  const int64_t along = index_strides[axis], x_along = x_strides[axis];
  for (Dims* each : {&others, &index_strides, &x_strides}) each->erase(each->begin() + axis);
  if (NumElements(others) == 0 || length == 0) return KernelStatus::Ok();
  const LoopNest nest = Merge(others, {index_strides, x_strides});
  const int64_t step = nest.inner_stride(0), x_step = nest.inner_stride(1);
  const auto visit = [&](int64_t line, int64_t x_line, int64_t j) {
    const int64_t i = line + (backwards ? length - 1 - j : j) * along;
    const int64_t place = places.At(i, limit);
    if (place >= 0) f(i, x_line + place * x_along);
  };
  const auto lines = [&](const RowOffsets& at, int64_t begin, int64_t end) {
    if (along > 1) {  // adjacent lines are contiguous
      for (int64_t j = 0; j < length; ++j) {
        for (int64_t k = begin; k < end; ++k) visit(at[0] + k * step, at[1] + k * x_step, j);
      }
    } else {
      for (int64_t k = begin; k < end; ++k) {
        for (int64_t j = 0; j < length; ++j) visit(at[0] + k * step, at[1] + k * x_step, j);
      }
    }
  };
  if (nest.rows() == 1) {
    ParallelFor(nest.inner(), length,
                [&](int64_t begin, int64_t end) { lines(RowOffsets{}, begin, end); });
  } else {
    ParallelFor(nest.rows(), nest.inner() * length, [&](int64_t begin, int64_t end) {
      ForRows(nest, begin, end, [&](const RowOffsets& at) { lines(at, 0, nest.inner()); });
    });
  }
  return places.Status([limit](int64_t) { return limit; });
}

// gather_nd and scatter_nd view x as [batch, rows, inner]; each tuple of indices selects a row.
struct NdRows {
  int64_t batch = 1, rows = 1, inner = 1;
  int64_t tuples = 1;  // per batch
  int64_t depth = 0;   // indices in a tuple
  Dims limits;         // of the indices of a tuple

  NdRows(const Dims& x, const Dims& indices, size_t batch_dims) {
    depth = indices.back();
    for (size_t d = 0; d < batch_dims; ++d) batch *= x[d];
    for (size_t d = batch_dims; d + 1 < indices.size(); ++d) tuples *= indices[d];
    limits.assign(x.begin() + batch_dims, x.begin() + batch_dims + depth);
    rows = NumElements(limits);
    for (size_t d = batch_dims + depth; d < x.size(); ++d) inner *= x[d];
  }

  // The row of x, counted over all batches, that each tuple selects.
  KernelStatus Resolve(const std::string& op, const TensorView& indices,
                       std::vector<int64_t>* targets) const {
    targets->resize(batch * tuples);
    ScatterIndices places(op, indices);
    ParallelFor(batch * tuples, depth + 1, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        int64_t row = t / tuples;
        for (int64_t d = 0; d < depth; ++d) {
          row = row * limits[d] + std::max<int64_t>(0, places.At(t * depth + d, limits[d]));
        }
        (*targets)[t] = row;
      }
    });
    return places.Status([&](int64_t i) { return limits[i % depth]; });
  }

  // Calls f(tuple, first, last) for the elements [first, last) of the row of every tuple. A row is
  // visited in the order of its tuples (`backwards`: the last one first).
  template <bool backwards = false, typename F>
  void ForTuples(const F& f) const {
    const auto all = [&](int64_t b, int64_t first, int64_t last) {
      for (int64_t j = 0; j < tuples; ++j) {
        f(b * tuples + (backwards ? tuples - 1 - j : j), first, last);
      }
    };
    if (batch > 1) {
      ParallelFor(batch, tuples * inner, [&](int64_t begin, int64_t end) {
        for (int64_t b = begin; b < end; ++b) all(b, 0, inner);
      });
    } else if (batch == 1) {
      ParallelBlocks(inner, std::max<int64_t>(64, kParallelGrain / std::max<int64_t>(tuples, 1)),
                     [&](int64_t begin, int64_t end) { all(0, begin, end); });
    }
  }
};

// Calls f with a captureless lambda (old, update) -> new on elements of type T.
template <typename T, typename F>
KernelStatus WithReduction(const std::string& reduction, const F& f) {
  if (reduction == "none") return f([](T, T update) { return update; });
  if (reduction == "add") {
    return f([](T old, T update) {
      if constexpr (std::is_integral_v<T>) {
        using Word = std::make_unsigned_t<T>;  // wraps
        return static_cast<T>(static_cast<Word>(old) + static_cast<Word>(update));
      } else {
        return old + update;
      }
    });
  }
  if (reduction == "multiply") {
    return f([](T old, T update) {
      if constexpr (std::is_integral_v<T>) {
        using Word = std::make_unsigned_t<T>;
        return static_cast<T>(static_cast<Word>(old) * static_cast<Word>(update));
      } else {
        return old * update;
      }
    });
  }
  if (reduction == "maximum") {
    return f([](T old, T update) { return update > old || update != update ? update : old; });
  }
  return f([](T old, T update) { return update < old || update != update ? update : old; });
}

// Calls f(T{}) with the type in which elements are combined: an unsigned integer of their size if
// they are only moved.
template <typename F>
KernelStatus WithScattered(DType dtype, const std::string& reduction, const F& f) {
  if (reduction != "none") {
    if (dtype == DType::kI32) return f(int32_t{});
    if (dtype == DType::kI64) return f(int64_t{});
    return f(float{});
  }
  KernelStatus status;
  WithBits(dtype, [&](auto bits) { status = f(bits); });
  return status;
}

// Elements that are only moved need no conversion.
inline KernelFactory ScatterFactory(const KernelFactory& factory) {
  return
      [moved = factory, combined = ViaF32(factory)](const KernelSpec& spec, std::string* refusal) {
        const bool moves = spec.attributes.String("reduction") == "none";
        return moves ? moved(spec, refusal) : combined(spec, refusal);
      };
}

// Returns whether the gradient is supported; otherwise sets *refusal.
inline bool HasScatterGradient(const KernelSpec& spec, std::string* refusal) {
  const std::string reduction = spec.attributes.String("reduction");
  if (reduction == "none" || reduction == "add") return true;
  *refusal = "reduction '" + reduction + "' has no gradient";
  return false;
}

}  // namespace espalier
