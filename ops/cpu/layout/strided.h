// Loop nests over strided operands: broadcast, permuted, sliced. Strides count elements.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/tensor/shape.h"

namespace espalier {

// A nest of at least one loop over `dims`; operand k moves by strides[k][d] per step of loop d.
// Merge makes it: it drops loops of one step and merges loops that are contiguous for all operands.
struct LoopNest {
  Dims dims;
  std::vector<Dims> strides;

  int64_t inner() const { return dims.back(); }
  int64_t inner_stride(size_t operand) const { return strides[operand].back(); }
  int64_t rows() const;  // product of all loops but the innermost
};
LoopNest Merge(const Dims& dims, const std::vector<Dims>& strides);

// Returns the strides of a dense row-major tensor.
Dims DenseStrides(const Dims& dims);

// Returns the strides to read a dense tensor of shape `dims` in loops over `loops` with numpy's
// broadcasting: 0 for dimensions that it lacks or in which it has size 1.
Dims BroadcastStrides(const Dims& dims, const Dims& loops);

// Calls f(offsets) for rows [begin, end) of the nest; offsets[k] is the offset of operand k at the
// start of the row.
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

// Copies target[...] = source[...] over `dims`, elements of `size` bytes (1, 2, 4 or 8). The
// pointers point to element 0.
void CopyStrided(const Dims& dims, size_t size, const void* source, const Dims& source_strides,
                 void* target, const Dims& target_strides);

// Returns `data` plus an offset in bytes.
inline char* At(void* data, int64_t bytes) { return static_cast<char*>(data) + bytes; }

}  // namespace espalier
