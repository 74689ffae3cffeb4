#include "ops/cpu/layout/strided.h"

#include <algorithm>
#include <cstring>

#include "ops/cpu/threading/parallel.h"

namespace espalier {
namespace {

// Transposes a block: target[i * target_stride + j] = source[j * source_stride + i]. Goes tile by
// tile through a buffer, so that each cache line of either side is touched once: with strides that
// are powers of two the lines of a tile compete for one set of the cache.
template <typename T>
void TransposeBlock(const T* source, int64_t source_stride, T* target, int64_t target_stride,
                    int64_t i_count, int64_t j_count) {
  constexpr int64_t kTile = 16;
  T tile[kTile][kTile];
  const int64_t i_whole = i_count / kTile * kTile, j_whole = j_count / kTile * kTile;
  for (int64_t i = 0; i < i_whole; i += kTile) {
    for (int64_t j = 0; j < j_whole; j += kTile) {
      for (int64_t c = 0; c < kTile; ++c) {
        std::memcpy(tile[c], source + (j + c) * source_stride + i, sizeof(tile[c]));
      }
      for (int64_t r = 0; r < kTile; ++r) {
        T* line = target + (i + r) * target_stride + j;
        for (int64_t c = 0; c < kTile; ++c) line[c] = tile[c][r];
      }
    }
  }
  for (int64_t i = 0; i < i_count; ++i) {
    for (int64_t j = i < i_whole ? j_whole : 0; j < j_count; ++j) {
      target[i * target_stride + j] = source[j * source_stride + i];
    }
  }
}

// Blocks keep the number of pages in use below the size of the TLB.
constexpr int64_t kBlock = 128;

template <typename T>
void Transpose(const T* source, int64_t source_stride, T* target, int64_t target_stride,
               int64_t i_count, int64_t j_count) {
  for (int64_t i = 0; i < i_count; i += kBlock) {
    for (int64_t j = 0; j < j_count; j += kBlock) {
      TransposeBlock(source + j * source_stride + i, source_stride, target + i * target_stride + j,
                     target_stride, std::min(kBlock, i_count - i), std::min(kBlock, j_count - j));
    }
  }
}

// Operand 0 is the source, 1 the target.
template <typename T>
void Copy(LoopNest nest, const T* source, T* target) {
  const int64_t n = nest.inner();
  const int64_t from = nest.inner_stride(0), to = nest.inner_stride(1);
  if (from == 1 && to == 1) {
    if (nest.rows() == 1) {
      ParallelFor(n, 1, [&](int64_t begin, int64_t end) {
        std::memcpy(target + begin, source + begin, (end - begin) * sizeof(T));
      });
      return;
    }
    ParallelFor(nest.rows(), n, [&](int64_t begin, int64_t end) {
      ForRows(nest, begin, end, [&](const RowOffsets& at) {
        std::memcpy(target + at[1], source + at[0], n * sizeof(T));
      });
    });
    return;
  }
  // Tiles span the innermost loop and a loop along which the source is contiguous.
  for (size_t d = 0; to == 1 && d + 1 < nest.dims.size(); ++d) {
    if (nest.strides[0][d] != 1) continue;
    const int64_t count = nest.dims[d], stride = nest.strides[1][d];
    LoopNest outer = nest;
    outer.dims.erase(outer.dims.begin() + d);
    for (Dims& strides : outer.strides) strides.erase(strides.begin() + d);
    // `outer` still contains the innermost loop; every row here is its start.
    if (outer.rows() == 1) {
      ParallelFor((count + kBlock - 1) / kBlock, kBlock * n, [&](int64_t begin, int64_t end) {
        const int64_t first = begin * kBlock, last = std::min(count, end * kBlock);
        Transpose(source + first, from, target + first * stride, stride, last - first, n);
      });
      return;
    }
    ParallelFor(outer.rows(), n * count, [&](int64_t begin, int64_t end) {
      ForRows(outer, begin, end, [&](const RowOffsets& at) {
        Transpose(source + at[0], from, target + at[1], stride, count, n);
      });
    });
    return;
  }
  ParallelFor(nest.rows(), n, [&](int64_t begin, int64_t end) {
    ForRows(nest, begin, end, [&](const RowOffsets& at) {
      const T* s = source + at[0];
      T* t = target + at[1];
      if (to == 1 && from == 0) {
        std::fill(t, t + n, *s);
      } else if (to == 1 && from == -1) {
        std::reverse_copy(s - (n - 1), s + 1, t);
      } else {
        for (int64_t i = 0; i < n; ++i) t[i * to] = s[i * from];
      }
    });
  });
}

}  // namespace

int64_t LoopNest::rows() const {
  int64_t rows = 1;
  for (size_t d = 0; d + 1 < dims.size(); ++d) rows *= dims[d];
  return rows;
}

LoopNest Merge(const Dims& dims, const std::vector<Dims>& strides) {
  LoopNest nest;
  nest.strides.resize(strides.size());
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] == 1) continue;
    bool one_walk = !nest.dims.empty();
    for (size_t k = 0; one_walk && k < strides.size(); ++k) {
      one_walk = nest.strides[k].back() == dims[d] * strides[k][d];
    }
    if (one_walk) {
      nest.dims.back() *= dims[d];
      for (size_t k = 0; k < strides.size(); ++k) nest.strides[k].back() = strides[k][d];
    } else {
      nest.dims.push_back(dims[d]);
      for (size_t k = 0; k < strides.size(); ++k) nest.strides[k].push_back(strides[k][d]);
    }
  }
  if (nest.dims.empty()) {
    nest.dims = {1};
    for (Dims& operand : nest.strides) operand = {1};
  }
  return nest;
}

Dims DenseStrides(const Dims& dims) {
  Dims strides(dims.size());
  int64_t stride = 1;
  for (size_t d = dims.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= dims[d];
  }
  return strides;
}

Dims BroadcastStrides(const Dims& dims, const Dims& loops) {
  const Dims dense = DenseStrides(dims);
  Dims strides(loops.size(), 0);
  const size_t missing = loops.size() - dims.size();
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] == loops[missing + d]) strides[missing + d] = dense[d];
  }
  return strides;
}

void CopyStrided(const Dims& dims, size_t size, const void* source, const Dims& source_strides,
                 void* target, const Dims& target_strides) {
  if (NumElements(dims) == 0) return;
  const LoopNest nest = Merge(dims, {source_strides, target_strides});
  switch (size) {
    case 1:
      return Copy(nest, static_cast<const uint8_t*>(source), static_cast<uint8_t*>(target));
    case 2:
      return Copy(nest, static_cast<const uint16_t*>(source), static_cast<uint16_t*>(target));
    case 4:
      return Copy(nest, static_cast<const uint32_t*>(source), static_cast<uint32_t*>(target));
    default:
      return Copy(nest, static_cast<const uint64_t*>(source), static_cast<uint64_t*>(target));
  }
}

}  // namespace espalier
