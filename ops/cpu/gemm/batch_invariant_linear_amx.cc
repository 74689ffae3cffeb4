#include "ops/cpu/gemm/batch_invariant_linear_amx.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>

#include "ops/cpu/simd/amx.h"
#include "ops/cpu/threading/parallel.h"
#include "ops/tensor/half_conversion.h"

// 64-byte registers spill to memory aligned to 64 bytes, which the stack of GCC 12's
// AddressSanitizer is not (GCC bug 110027).
#define ESPALIER_TILES ESPALIER_AMX __attribute__((no_sanitize("address")))

namespace espalier {
namespace {

constexpr int64_t kTile = 16;   // rows of x, outputs
constexpr int64_t kChunk = 32;  // inputs
// Bytes of a block of weights that stays in L2 while all rows pass over it.
constexpr int64_t kBlockBytes = 512 << 10;
// Prefetch distance along a row of weights, in inputs.
constexpr int64_t kAhead = 8 * kChunk;

struct alignas(64) Line {
  uint16_t numbers[kChunk];
};

// x packed into AMX tiles: for every 16 rows (fewer at the end), for every chunk, for every bf16
// part, element [pair of inputs][row][2].
struct PackedRows {
  int64_t rows, in, chunks;
  int parts;
  std::unique_ptr<Line[]> lines;

  int64_t TileRows(int64_t tile) const { return std::min(kTile, rows - tile * kTile); }
  uint32_t* Tile(int64_t tile, int64_t chunk) const {
    const int64_t first = tile * kTile * chunks * parts + chunk * parts * TileRows(tile);
    return reinterpret_cast<uint32_t*>(lines.get() + first);
  }
  int64_t PartWords(int64_t tile) const { return TileRows(tile) * kTile; }
};

// parts[p][i]: the bf16 rounding of what parts before p leave of x[i].
ESPALIER_TILES inline void Split(const float* x, int64_t n, int parts, uint16_t (*to)[kChunk]) {
  alignas(64) float left[kChunk] = {};
  std::memcpy(left, x, static_cast<size_t>(n) * sizeof(float));
  for (int p = 0; p < parts; ++p) {
#pragma omp simd
    for (int64_t i = 0; i < kChunk; ++i) {
      const uint16_t part = F32ToBF16(left[i]);
      to[p][i] = part;
      // An infinity or NaN goes into the first part alone.
      const float rest = left[i] - BF16ToF32(part);
      left[i] = std::fabs(rest) < 1e38f ? rest : 0.0f;
    }
  }
}

PackedRows Pack(const BatchInvariantLinearArgs& args) {
  PackedRows out;
  out.rows = args.rows;
  out.in = args.in;
  out.chunks = (args.in + kChunk - 1) / kChunk;
  out.parts = args.dtype == DType::kBF16 ? 1 : 3;
  out.lines.reset(new Line[static_cast<size_t>(out.rows * out.chunks * out.parts)]);
  ParallelRanges(out.rows, out.in * out.parts, [&](int64_t begin, int64_t end) {
    uint16_t parts[3][kChunk] = {};
    for (int64_t row = begin; row < end; ++row) {
      const int64_t tile = row / kTile, rows = out.TileRows(tile);
      for (int64_t c = 0; c < out.chunks; ++c) {
        const int64_t first = c * kChunk, n = std::min(kChunk, out.in - first);
        if (args.dtype == DType::kBF16) {
          std::fill_n(parts[0], kChunk, uint16_t{0});
          std::memcpy(parts[0], static_cast<const uint16_t*>(args.x) + row * out.in + first,
                      static_cast<size_t>(n) * sizeof(uint16_t));
        } else {
          Split(static_cast<const float*>(args.x) + row * out.in + first, n, out.parts, parts);
        }
        uint32_t* to = out.Tile(tile, c) + row % kTile;
        for (int p = 0; p < out.parts; ++p, to += out.PartWords(tile)) {
          for (int64_t pair = 0; pair < kChunk / 2; ++pair) {
            std::memcpy(to + pair * rows, parts[p] + 2 * pair, sizeof(uint32_t));
          }
        }
      }
    }
  });
  return out;
}

// A panel: M tiles of outputs by N tiles of rows. AMX tile registers (must be literals): 0 to 3
// hold sums, 4 and 5 weights, 6 and 7 rows of x.
struct Panel {
  const BatchInvariantLinearArgs& args;
  const PackedRows& x;
  int64_t output, outputs;  // first, and how many
  int64_t tile;             // of rows, the first
  bool prefetch;
};

// The weights of the last chunk, padded with zeros.
void CopyTail(const Panel& p, int64_t chunk, Line* tail) {
  const int64_t first = chunk * kChunk;
  for (int64_t o = 0; o < p.outputs; ++o) {
    const auto* row = static_cast<const uint16_t*>(p.args.weight) + (p.output + o) * p.args.in;
    std::fill_n(tail[o].numbers, kChunk, uint16_t{0});
    std::memcpy(tail[o].numbers, row + first,
                static_cast<size_t>(p.args.in - first) * sizeof(uint16_t));
  }
}

template <int M, int N>
ESPALIER_TILES void Multiply(const Panel& p) {
  const int64_t in = p.args.in;
  const auto* weights = static_cast<const uint16_t*>(p.args.weight) + p.output * in;
  const int64_t strides[2] = {4 * p.x.TileRows(p.tile),
                              N > 1 ? 4 * p.x.TileRows(p.tile + 1) : int64_t{0}};
  Line tail[M * kTile];
  _tile_zero(0);
  if constexpr (N > 1) _tile_zero(1);
  if constexpr (M > 1) _tile_zero(2);
  if constexpr (M > 1 && N > 1) _tile_zero(3);
  for (int64_t c = 0; c < p.x.chunks; ++c) {
    const uint16_t* from = weights + c * kChunk;
    int64_t stride = 2 * in;
    if ((c + 1) * kChunk > in) {
      CopyTail(p, c, tail);
      from = tail[0].numbers;
      stride = sizeof(Line);
    } else if (p.prefetch) {
      // Near the end of the rows, prefetches the next panel.
      const int64_t next = c * kChunk + kAhead < in ? c * kChunk + kAhead
                                                    : 2 * kTile * in + c * kChunk + kAhead - in;
      for (int64_t o = 0; o < p.outputs; ++o) {
        _mm_prefetch(reinterpret_cast<const char*>(weights + o * in + next), _MM_HINT_T0);
      }
    }
    _tile_loadd(4, from, stride);
    if constexpr (M > 1) _tile_loadd(5, from + kTile * stride / 2, stride);
    const uint32_t* x0 = p.x.Tile(p.tile, c);
    const uint32_t* x1 = N > 1 ? p.x.Tile(p.tile + 1, c) : nullptr;
    for (int part = 0; part < p.x.parts; ++part) {
      _tile_loadd(6, x0, strides[0]);
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (M > 1) _tile_dpbf16ps(2, 5, 6);
      x0 += p.x.PartWords(p.tile);
      if constexpr (N > 1) {
        _tile_loadd(7, x1, strides[1]);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (M > 1) _tile_dpbf16ps(3, 5, 7);
        x1 += p.x.PartWords(p.tile + 1);
      }
    }
  }
}

template <typename T>
void Write(const Panel& p, int64_t output, int64_t outputs, int64_t row, int64_t rows,
           const float* sums) {
  const T* const bias = static_cast<const T*>(p.args.bias);
  for (int64_t r = 0; r < rows; ++r) {
    T* const y = static_cast<T*>(p.args.y) + (row + r) * p.args.out + output;
    for (int64_t o = 0; o < outputs; ++o) {
      float value = sums[o * kTile + r];
      if constexpr (sizeof(T) == 2) {
        if (bias != nullptr) value += BF16ToF32(bias[output + o]);
        y[o] = F32ToBF16(value);
      } else {
        if (bias != nullptr) value += bias[output + o];
        y[o] = value;
      }
    }
  }
}

template <int M, int N>
ESPALIER_TILES void Run(const Panel& p) {
  Multiply<M, N>(p);
  alignas(64) float sums[M * N][kTile * kTile];
  _tile_stored(0, sums[0], 64);
  if constexpr (N > 1) _tile_stored(1, sums[1], 64);
  if constexpr (M > 1) _tile_stored(2, sums[N], 64);
  if constexpr (M > 1 && N > 1) _tile_stored(3, sums[3], 64);
  for (int m = 0; m < M; ++m) {
    const int64_t output = m * kTile, outputs = std::min(kTile, p.outputs - output);
    for (int n = 0; n < N; ++n) {
      const int64_t tile = p.tile + n;
      const auto write = p.args.dtype == DType::kBF16 ? Write<uint16_t> : Write<float>;
      write(p, p.output + output, outputs, tile * kTile, p.x.TileRows(tile), sums[m * N + n]);
    }
  }
}

// The shapes of a panel's tiles.
amx::TileShapes ShapesOf(const Panel& p, int m, int n) {
  amx::TileShapes shapes;
  for (int i = 0; i < m; ++i) {
    const int64_t outputs = std::min(kTile, p.outputs - i * kTile);
    shapes.Set(4 + i, outputs, 2 * kChunk);
    for (int j = 0; j < n; ++j) shapes.Set(2 * i + j, outputs, 4 * p.x.TileRows(p.tile + j));
  }
  for (int j = 0; j < n; ++j) shapes.Set(6 + j, kChunk / 2, 4 * p.x.TileRows(p.tile + j));
  return shapes;
}

// Outputs [begin, end).
ESPALIER_TILES void RunOutputs(const BatchInvariantLinearArgs& args, const PackedRows& x,
                               int64_t begin, int64_t end) {
  const int64_t tiles = (args.rows + kTile - 1) / kTile;
  const int64_t block =
      std::max<int64_t>(2 * kTile, kBlockBytes / (2 * std::max<int64_t>(1, args.in)) / 32 * 32);
  amx::Tiles configured;
  amx::TileShapes last;
  last.palette = 0;
  for (int64_t first = begin; first < end; first += block) {
    const int64_t stop = std::min(end, first + block);
    for (int64_t tile = 0; tile < tiles; tile += 2) {
      for (int64_t output = first; output < stop; output += 2 * kTile) {
        const Panel panel{args, x, output, std::min(2 * kTile, stop - output), tile, tile == 0};
        const int m = panel.outputs > kTile ? 2 : 1, n = tile + 1 < tiles ? 2 : 1;
        const amx::TileShapes shapes = ShapesOf(panel, m, n);
        if (std::memcmp(&shapes, &last, sizeof(shapes)) != 0) configured.Configure(shapes);
        last = shapes;
        if (m == 2) {
          n == 2 ? Run<2, 2>(panel) : Run<2, 1>(panel);
        } else {
          n == 2 ? Run<1, 2>(panel) : Run<1, 1>(panel);
        }
      }
    }
  }
}

}  // namespace

void BatchInvariantLinearAmx(const BatchInvariantLinearArgs& args) {
  if (args.rows == 0 || args.out == 0) return;
  const PackedRows x = Pack(args);
  // Threads take whole panels of outputs.
  const int64_t panels = (args.out + 2 * kTile - 1) / (2 * kTile);
  ParallelRanges(panels, 2 * kTile * args.in * (3 + args.rows) / 16,
                 [&](int64_t begin, int64_t end) {
                   RunOutputs(args, x, begin * 2 * kTile, std::min(end * 2 * kTile, args.out));
                 });
}

}  // namespace espalier
