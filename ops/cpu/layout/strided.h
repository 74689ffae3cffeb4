// Loops over operands of different layouts: broadcast, permuted, cut out. Strides count elements.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/tensor/shape.h"

namespace espalier {

// A nest of loops over `dims`; operand k moves by strides[k][d] per step of loop d. Always at least
// one loop. Made by Merge: loops that run once are gone, loops that all operands walk as one are
// one.
struct LoopNest {
  Dims dims;
  std::vector<Dims> strides;

  int64_t inner() const { return dims.back(); }
  int64_t inner_stride(size_t operand) const { return strides[operand].back(); }
  int64_t rows() const;  // product of all loops but the innermost
};
LoopNest Merge(const Dims& dims, const std::vector<Dims>& strides);

// Strides of a dense row-major tensor.
Dims DenseStrides(const Dims& dims);

// Strides with which a dense tensor of shape `dims` is read in loops over `loops`, of which it
// lacks leading dimensions or has size 1 in some (numpy's broadcasting): 0 in those.
Dims BroadcastStrides(const Dims& dims, const Dims& loops);

// Calls f(offsets) for rows [begin, end) of the nest; offsets[k] is operand k's offset at the row's
// start.
constexpr size_t kMaxOperands = 4;
using RowOffsets = std::array<int64_t, kMaxOperands>;

template <typename F>
void ForRows(const LoopNest& nest, int64_t begin, int64_t end, const F& f) {
  if (begin >= end) return;
  const size_t loops = nest.dims.size() - 1, operands = nest.strides.size();
  std::vector<int64_t> index(loops);
  RowOffsets offsets{};
  int64_t rest = begin;
  for (size_t d = loops; d-- > 0;) {
    index[d] = rest % nest.dims[d];
    rest /= nest.dims[d];
    for (size_t k = 0; k < operands; ++k) offsets[k] += index[d] * nest.strides[k][d];
  }
  for (int64_t row = begin; row < end; ++row) {
    f(offsets);
    for (size_t d = loops; d-- > 0;) {
      for (size_t k = 0; k < operands; ++k) offsets[k] += nest.strides[k][d];
      if (++index[d] < nest.dims[d]) break;
      for (size_t k = 0; k < operands; ++k) offsets[k] -= nest.dims[d] * nest.strides[k][d];
      index[d] = 0;
    }
  }
}

// target[...] = source[...] over `dims`, elements of `size` bytes (1, 2, 4 or 8). Element 0 of both
// loops is where the pointers point to.
void CopyStrided(const Dims& dims, size_t size, const void* source, const Dims& source_strides,
                 void* target, const Dims& target_strides);

// Bytes from `data` on.
inline char* At(void* data, int64_t bytes) { return static_cast<char*>(data) + bytes; }

}  // namespace espalier
