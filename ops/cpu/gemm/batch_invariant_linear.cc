// The rows of x and of the weights both run along k, so dot products read the weights in place: no
// packed copy doubles their memory or goes stale. Register tiles of R rows by C outputs keep the
// arithmetic units busy (R + C loads for R * C multiply-adds); DotTile fixes the order of summation
// for every tile shape. One row streams the weights at memory speed; several rows reuse them from
// L1. Weights in bf16 use AMX where the CPU has it (batch_invariant_linear_amx.h).
#include "ops/cpu/gemm/batch_invariant_linear.h"

#include <algorithm>

#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/gemm/batch_invariant_linear_amx.h"
#include "ops/cpu/gemm/dot_tile.h"
#include "ops/cpu/simd/amx.h"
#include "ops/cpu/threading/parallel.h"

namespace espalier {
namespace {

// Bytes of a block of weights that stays in L2 while all rows pass over it.
constexpr int64_t kBlockBytes = 256 << 10;

template <typename T>
float ReadBias(const void* bias, int64_t i) {
  if constexpr (sizeof(T) == 2) return BF16ToF32(static_cast<const uint16_t*>(bias)[i]);
  return static_cast<const float*>(bias)[i];
}

// Bytes of the rows of x of a tall tile, at most: they must stay in L1 beside the weights.
constexpr int64_t kTallBytes = 22 << 10;

// T is the type of x, bias and y, B of the weights.
template <int W, typename T, typename B>
struct Columns {
  // Rows of a tile: kRows balances loads and multiply-adds; kTall is the maximum.
  static constexpr int kRows = W / 4, kTall = W / 2;

  const BatchInvariantLinearArgs& g;
  int64_t begin, end;  // columns

  template <int R, bool kAhead>
  ESPALIER_INLINE void Tile(int64_t row, int64_t column, int64_t last) const {
    constexpr int C = W / R;
    const T* x = static_cast<const T*>(g.x);
    const B* weight = static_cast<const B*>(g.weight);
    const T* a[R];
    const B* b[C];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) a[r] = x + (row + r) * g.in;
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) b[c] = weight + std::min(column + c, last - 1) * g.in;
    float sums[W];
    simd::Store<W>(sums, simd::DotTile<W, R, C, kAhead>(a, b, g.in, g.in));
    const int64_t valid = std::min<int64_t>(C, last - column);
    for (int64_t r = 0; r < R; ++r) {
      T* y = static_cast<T*>(g.y) + (row + r) * g.out + column;
      for (int64_t c = 0; c < valid; ++c) {
        float value = sums[r * C + c];
        if (g.bias != nullptr) value += ReadBias<T>(g.bias, column + c);
        if constexpr (sizeof(T) == 2) {
          y[c] = F32ToBF16(value);
        } else {
          y[c] = value;
        }
      }
    }
  }

  template <int R, bool kAhead>
  ESPALIER_INLINE void Pass(int64_t row, int64_t first, int64_t last) const {
    for (int64_t c = first; c < last; c += W / R) Tile<R, kAhead>(row, c, last);
  }

  // Passes over R rows, or fewer if fewer are left.
  template <int R>
  ESPALIER_INLINE void PassOf(int64_t row, int64_t end_row, int64_t first, int64_t last) const {
    if constexpr (R > 0) {
      if (end_row - row < R) return PassOf<R - 1>(row, end_row, first, last);
      // The first rows read the block from memory (with prefetch), the others from the cache.
      if (row == 0) return Pass<R, true>(row, first, last);
      Pass<R, false>(row, first, last);
    }
  }

  ESPALIER_INLINE void Run() const {
    const int64_t bytes = std::max<int64_t>(1, g.in * static_cast<int64_t>(sizeof(B)));
    const int64_t most = std::clamp<int64_t>(
        kTallBytes / std::max<int64_t>(1, g.in * static_cast<int64_t>(sizeof(T))), kRows, kTall);
    // Passes have about equal numbers of rows: a pass over one row costs as much as over three.
    const int64_t passes = (g.rows + most - 1) / most;
    const int64_t block = std::max<int64_t>(W, kBlockBytes / bytes / W * W);
    for (int64_t first = begin; first < end; first += block) {
      const int64_t last = std::min(end, first + block);
      for (int64_t pass = 0; pass < passes; ++pass) {
        const int64_t row = g.rows * pass / passes, next = g.rows * (pass + 1) / passes;
        PassOf<kTall>(row, next, first, last);
      }
    }
  }
};

template <int W>
struct ColumnsF32 {
  static ESPALIER_INLINE void Run(const BatchInvariantLinearArgs* g, int64_t begin, int64_t end) {
    Columns<W, float, float>{*g, begin, end}.Run();
  }
};

template <int W>
struct ColumnsBF16 {
  static ESPALIER_INLINE void Run(const BatchInvariantLinearArgs* g, int64_t begin, int64_t end) {
    Columns<W, uint16_t, uint16_t>{*g, begin, end}.Run();
  }
};

template <int W>
struct ColumnsHalf {
  static ESPALIER_INLINE void Run(const BatchInvariantLinearArgs* g, int64_t begin, int64_t end) {
    Columns<W, float, simd::Half>{*g, begin, end}.Run();
  }
};

template <int W>
struct ColumnsMixed {
  static ESPALIER_INLINE void Run(const BatchInvariantLinearArgs* g, int64_t begin, int64_t end) {
    Columns<W, float, uint16_t>{*g, begin, end}.Run();
  }
};

}  // namespace

void BatchInvariantLinear(const BatchInvariantLinearArgs& args) {
  BatchInvariantLinear({&args, 1});
}

void BatchInvariantLinear(std::span<const BatchInvariantLinearArgs> products) {
  const BatchInvariantLinearArgs& first = products[0];
  if (first.rows == 0) return;
  if (first.weight_dtype == DType::kBF16 && amx::Available()) {
    for (const BatchInvariantLinearArgs& args : products) BatchInvariantLinearAmx(args);
    return;
  }
  // Threads take whole groups of outputs, so that few tiles are partial.
  constexpr int64_t kGroup = 16;
  std::vector<int64_t> groups;
  for (const BatchInvariantLinearArgs& args : products)
    groups.push_back((args.out + kGroup - 1) / kGroup);
  ParallelArrays(groups, kGroup * first.in * (3 + first.rows) / 4,
                 [&](size_t which, int64_t begin, int64_t end) {
                   const BatchInvariantLinearArgs& args = products[which];
                   const int64_t from = begin * kGroup, to = std::min(end * kGroup, args.out);
                   if (args.dtype == DType::kBF16) {
                     simd::Dispatch<ColumnsBF16>(&args, from, to);
                   } else if (args.weight_dtype == DType::kBF16) {
                     simd::Dispatch<ColumnsMixed>(&args, from, to);
                   } else if (args.weight_dtype == DType::kF16) {
                     simd::Dispatch<ColumnsHalf>(&args, from, to);
                   } else {
                     simd::Dispatch<ColumnsF32>(&args, from, to);
                   }
                 });
}

}  // namespace espalier
