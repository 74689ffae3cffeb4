// A product's inputs are chunks of 32, and the chunks eight parts. Within a chunk the tensor cores
// add up; chunks are added in order to the sum of their part, and parts from first to last. Kernels
// for few and for many rows differ in which warp does that for which elements, and in nothing else.
#include "ops/cuda/row_products.h"

#include <algorithm>
#include <cstdint>

#include "ops/cuda/activation.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/numeric.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/register.h"
#include "ops/kernel/packed_weights.h"

namespace espalier {
namespace row_products {

constexpr int kWarps = kThreads / 32;
constexpr int kParts = 8;
constexpr int kChunk = 32;       // inputs
constexpr int kTileRows = 8;     // of x in a product of the tensor cores
constexpr int kTileOutputs = 16;
constexpr int kMostTileRows = 64;  // that a block holds
constexpr int kPitch = 20;         // floats from row to row of 16 outputs in shared memory

static_assert(kChunk == kPackGroup && kTileOutputs == kPackOutputs);

struct Piece {
  const uint8_t* weights;
  const float* bias;
  float* y;
  int64_t out;
  int64_t first_tile;  // among the tiles of outputs of all pieces
};

struct Matrices {
  Piece pieces[RowProducts::kMost];
  int count;
  int64_t tiles, in;
  bool vectors;  // inputs may be read 16 bytes at a time
};

// x, split or rounded: see the kernels that make it.
struct Rows {
  int64_t rows, chunks;
  int64_t plane;         // elements from one of the three bf16 numbers to the next
  const uint8_t* data;   // bf16 [3][rows][32 * chunks], or i8 [rows][32 * chunks]
  const float* scale;    // [rows][chunks]
  const float* scaled_sum;
};

__device__ __forceinline__ void MultiplyBF16(const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                             float (&c)[4]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void MultiplyI8(const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                           int (&c)[4]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Exact for magnitudes below 2^22, and twice as fast as a conversion.
__device__ __forceinline__ float SmallToFloat(int x) {
  return __int_as_float(0x4b400000 + x) - 12582912.0f;
}

// Lane (g, t), g = lane / 4 and t = lane % 4, holds of a tile's weights outputs g and g + 8, and of
// x row g, inputs 8 t to 8 t + 7 of a chunk: the tensor cores multiply what lies at the same place,
// and do not ask which input it is. Its four sums are those of outputs g, g, g + 8, g + 8 and rows
// 2 t, 2 t + 1, 2 t, 2 t + 1.
template <RowWeights kind>
struct Format;

template <>
struct Format<RowWeights::kPacked8> {
  static constexpr int kAhead = 6;  // chunks that are being read
  struct Raw {
    uint32_t words[4];
    __half scale[2];
  };
  static __device__ __forceinline__ Raw Load(const Matrices& m, const Piece& piece, int64_t tile,
                                             int64_t chunk, int lane) {
    const PackedWeights shape{8, piece.out, m.in};
    const uint8_t* const block = piece.weights + tile * shape.block_bytes();
    const auto* const words = reinterpret_cast<const uint32_t*>(block + shape.numbers_at(chunk));
    const auto* const scales = reinterpret_cast<const __half*>(block + shape.scales_at(chunk));
    const int g = lane / 4, t = lane % 4;
    Raw raw;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      raw.words[i] = __ldcs(words + (2 * t + i / 2) * kTileOutputs + g + 8 * (i % 2));
    }
    raw.scale[0] = __ldcs(scales + g);
    raw.scale[1] = __ldcs(scales + g + 8);
    return raw;
  }

  struct Weights {
    uint32_t a[4];
    float scale[2];
  };
  static __device__ __forceinline__ Weights Unpack(const Raw& raw) {
    Weights w;
#pragma unroll
    for (int i = 0; i < 4; ++i) w.a[i] = raw.words[i] ^ 0x80808080u;  // less 128, with a sign
    w.scale[0] = __half2float(raw.scale[0]);
    w.scale[1] = __half2float(raw.scale[1]);
    return w;
  }
  static __device__ __forceinline__ void Add(const Weights& w, const Rows& x, int64_t row0,
                                             int64_t chunk, int lane, float (&sums)[4]) {
    const int g = lane / 4, t = lane % 4;
    const uint2 b = *reinterpret_cast<const uint2*>(
        x.data + ((row0 + g) * x.chunks + chunk) * kChunk + 8 * t);
    int dots[4] = {};
    MultiplyI8(w.a, b.x, b.y, dots);
    const int64_t at = (row0 + 2 * t) * x.chunks + chunk;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float scale = w.scale[i / 2] * x.scale[at + i % 2 * x.chunks];
      sums[i] = fmaf(SmallToFloat(dots[i]), scale, sums[i]);
    }
  }
};

template <>
struct Format<RowWeights::kPacked4> {
  static constexpr int kAhead = 8;
  struct Raw {
    uint32_t words[2];
    __half scale[2], minimum[2];
  };
  static __device__ __forceinline__ Raw Load(const Matrices& m, const Piece& piece, int64_t tile,
                                             int64_t chunk, int lane) {
    const PackedWeights shape{4, piece.out, m.in};
    const uint8_t* const block = piece.weights + tile * shape.block_bytes();
    const auto* const words = reinterpret_cast<const uint32_t*>(block + shape.numbers_at(chunk));
    const auto* const scales = reinterpret_cast<const __half*>(block + shape.scales_at(chunk));
    const int g = lane / 4, t = lane % 4;
    Raw raw;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      raw.words[i] = __ldcs(words + t * kTileOutputs + g + 8 * i);
      raw.scale[i] = __ldcs(scales + g + 8 * i);
      raw.minimum[i] = __ldcs(scales + kTileOutputs + g + 8 * i);
    }
    return raw;
  }

  struct Weights {
    uint32_t a[4];
    float scale[2], minimum[2];
  };
  static __device__ __forceinline__ Weights Unpack(const Raw& raw) {
    Weights w;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      w.a[i] = raw.words[i] & 0x0f0f0f0fu;
      w.a[2 + i] = raw.words[i] >> 4 & 0x0f0f0f0fu;
      w.scale[i] = __half2float(raw.scale[i]);
      w.minimum[i] = __half2float(raw.minimum[i]);
    }
    return w;
  }
  static __device__ __forceinline__ void Add(const Weights& w, const Rows& x, int64_t row0,
                                             int64_t chunk, int lane, float (&sums)[4]) {
    const int g = lane / 4, t = lane % 4;
    const uint2 b = *reinterpret_cast<const uint2*>(
        x.data + ((row0 + g) * x.chunks + chunk) * kChunk + 8 * t);
    int dots[4] = {};
    MultiplyI8(w.a, b.x, b.y, dots);
    const int64_t at = (row0 + 2 * t) * x.chunks + chunk;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t of_row = at + i % 2 * x.chunks;
      sums[i] = fmaf(SmallToFloat(dots[i]), w.scale[i / 2] * x.scale[of_row], sums[i]);
      sums[i] = fmaf(w.minimum[i / 2], x.scaled_sum[of_row], sums[i]);
    }
  }
};

// Eight neighbours of a row's inputs; zeros outside the matrix.
template <typename T, int kVectors>
__device__ __forceinline__ void ReadInputs(const Matrices& m, const Piece& piece, int64_t output,
                                           int64_t input, uint4 (&to)[kVectors]) {
  constexpr int kEach = 16 / sizeof(T);
  if (output >= piece.out || input >= m.in) {
#pragma unroll
    for (uint4& v : to) v = make_uint4(0, 0, 0, 0);
    return;
  }
  const T* const from = reinterpret_cast<const T*>(piece.weights) + output * m.in + input;
  if (m.vectors) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) to[v] = __ldcs(reinterpret_cast<const uint4*>(from) + v);
    return;
  }
  T elements[kVectors * kEach];
  for (int e = 0; e < kVectors * kEach; ++e) {
    elements[e] = input + e < m.in ? from[e] : FromFloat<T>(0.0f);
  }
  memcpy(to, elements, sizeof(to));
}

// The three bf16 numbers of each of eight inputs of row g.
struct SplitInputs {
  uint4 plane[3];

  __device__ __forceinline__ SplitInputs(const Rows& x, int64_t row, int64_t chunk, int t) {
    const auto* const at = reinterpret_cast<const __nv_bfloat16*>(x.data) +
                           (row * x.chunks + chunk) * kChunk + 8 * t;
#pragma unroll
    for (int p = 0; p < 3; ++p) plane[p] = *reinterpret_cast<const uint4*>(at + p * x.plane);
  }
};

// Fragments of a chunk are two products of 16 inputs.
struct Fragments {
  uint32_t a[2][4];

  __device__ __forceinline__ void Set(const uint32_t (&low)[4], const uint32_t (&high)[4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      a[half][0] = low[2 * half];
      a[half][1] = high[2 * half];
      a[half][2] = low[2 * half + 1];
      a[half][3] = high[2 * half + 1];
    }
  }
  __device__ __forceinline__ void Multiply(const uint4& b, float (&sums)[4]) const {
    MultiplyBF16(a[0], b.x, b.y, sums);
    MultiplyBF16(a[1], b.z, b.w, sums);
  }
};

template <>
struct Format<RowWeights::kBF16> {
  static constexpr int kAhead = 4;
  struct Raw {
    uint4 low[1], high[1];
  };
  static __device__ __forceinline__ Raw Load(const Matrices& m, const Piece& piece, int64_t tile,
                                             int64_t chunk, int lane) {
    const int64_t output = tile * kTileOutputs + lane / 4, input = chunk * kChunk + lane % 4 * 8;
    Raw raw;
    ReadInputs<__nv_bfloat16>(m, piece, output, input, raw.low);
    ReadInputs<__nv_bfloat16>(m, piece, output + 8, input, raw.high);
    return raw;
  }

  using Weights = Fragments;
  static __device__ __forceinline__ Weights Unpack(const Raw& raw) {
    Weights w;
    w.Set({raw.low[0].x, raw.low[0].y, raw.low[0].z, raw.low[0].w},
          {raw.high[0].x, raw.high[0].y, raw.high[0].z, raw.high[0].w});
    return w;
  }
  static __device__ __forceinline__ void Add(const Weights& w, const Rows& x, int64_t row0,
                                             int64_t chunk, int lane, float (&sums)[4]) {
    const SplitInputs b(x, row0 + lane / 4, chunk, lane % 4);
    float of_chunk[4] = {};
#pragma unroll
    for (int p = 2; p >= 0; --p) w.Multiply(b.plane[p], of_chunk);
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] += of_chunk[i];
  }
};

// The upper halves of two f32 numbers: bf16, cut off.
__device__ __forceinline__ uint32_t UpperHalves(uint32_t first, uint32_t second) {
  return __byte_perm(first, second, 0x7632);
}
__device__ __forceinline__ uint32_t Rest(uint32_t x) {
  return __float_as_uint(__uint_as_float(x) - __uint_as_float(x & 0xffff0000u));
}

template <>
struct Format<RowWeights::kF32> {
  static constexpr int kAhead = 3;
  struct Raw {
    uint4 low[2], high[2];
  };
  static __device__ __forceinline__ Raw Load(const Matrices& m, const Piece& piece, int64_t tile,
                                             int64_t chunk, int lane) {
    const int64_t output = tile * kTileOutputs + lane / 4, input = chunk * kChunk + lane % 4 * 8;
    Raw raw;
    ReadInputs<float>(m, piece, output, input, raw.low);
    ReadInputs<float>(m, piece, output + 8, input, raw.high);
    return raw;
  }

  struct Weights {
    Fragments plane[3];
  };
  static __device__ __forceinline__ Weights Unpack(const Raw& raw) {
    uint32_t rest[2][8] = {{raw.low[0].x, raw.low[0].y, raw.low[0].z, raw.low[0].w, raw.low[1].x,
                            raw.low[1].y, raw.low[1].z, raw.low[1].w},
                           {raw.high[0].x, raw.high[0].y, raw.high[0].z, raw.high[0].w,
                            raw.high[1].x, raw.high[1].y, raw.high[1].z, raw.high[1].w}};
    Weights w;
#pragma unroll
    for (int p = 0; p < 3; ++p) {
      uint32_t pairs[2][4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          pairs[half][i] = UpperHalves(rest[half][2 * i], rest[half][2 * i + 1]);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) rest[half][i] = Rest(rest[half][i]);
      }
      w.plane[p].Set(pairs[0], pairs[1]);
    }
    return w;
  }
  static __device__ __forceinline__ void Add(const Weights& w, const Rows& x, int64_t row0,
                                             int64_t chunk, int lane, float (&sums)[4]) {
    const SplitInputs b(x, row0 + lane / 4, chunk, lane % 4);
    float of_chunk[4] = {};
    w.plane[2].Multiply(b.plane[0], of_chunk);
    w.plane[0].Multiply(b.plane[2], of_chunk);
    w.plane[1].Multiply(b.plane[1], of_chunk);
    w.plane[1].Multiply(b.plane[0], of_chunk);
    w.plane[0].Multiply(b.plane[1], of_chunk);
    w.plane[0].Multiply(b.plane[0], of_chunk);
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] += of_chunk[i];
  }
};

__device__ __forceinline__ float Activate(Activation activation, float x) {
  switch (activation) {
    case Activation::kRelu:
      return Relu()(x);
    case Activation::kGelu:
      return Gelu()(x);
    case Activation::kSilu:
      return Silu()(x);
    case Activation::kSigmoid:
      return Sigmoid()(x);
    case Activation::kTanh:
      return Tanh()(x);
    case Activation::kNone:
      break;
  }
  return x;
}

__device__ __forceinline__ void Finish(const Piece& piece, const Rows& x, Activation activation,
                                       int64_t row, int64_t output, float sum) {
  if (row >= x.rows || output >= piece.out) return;
  if (piece.bias != nullptr) sum += piece.bias[output];
  piece.y[row * piece.out + output] = Activate(activation, sum);
}

// Adds the chunks [begin, end) for kTiles tiles of rows, in order; the next ones are being read.
template <RowWeights kind, int kTiles>
__device__ __forceinline__ void AddChunks(const Matrices& m, const Piece& piece, int64_t tile,
                                          const Rows& x, int64_t row0, int64_t begin, int64_t end,
                                          int lane, float (&sums)[kTiles][4]) {
  using F = Format<kind>;
  // Many tiles take the registers, and time enough.
  constexpr int kAhead = kTiles < 4 ? F::kAhead : (F::kAhead + 1) / 2;
  typename F::Raw raw[kAhead];
#pragma unroll
  for (int u = 0; u < kAhead; ++u) {
    if (begin + u < end) raw[u] = F::Load(m, piece, tile, begin + u, lane);
  }
  for (int64_t c0 = begin; c0 < end; c0 += kAhead) {
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int64_t chunk = c0 + u;
      if (chunk >= end) break;
      const typename F::Weights weights = F::Unpack(raw[u]);
      if (chunk + kAhead < end) raw[u] = F::Load(m, piece, tile, chunk + kAhead, lane);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        F::Add(weights, x, row0 + kTileRows * i, chunk, lane, sums[i]);
      }
    }
  }
}

// kAcross warps of a block take different outputs, and kWarps / kAcross groups of them different
// parts of the inputs. Grid: tiles of outputs / kAcross by rows / (8 kTiles).
template <RowWeights kind, int kTiles, int kAcross>
__global__ void __launch_bounds__(kThreads)
    ProductKernel(Matrices m, Rows x, Activation activation) {
  extern __shared__ float shared[];  // [kAcross][kParts][8 kTiles][kPitch], unless one warp has all
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) * kTiles * kTileRows;
  const int64_t tile0 = static_cast<int64_t>(blockIdx.x) * kAcross;
  const auto piece_of = [&](int64_t tile) -> const Piece& {
    int p = 0;
    while (p + 1 < m.count && tile >= m.pieces[p + 1].first_tile) ++p;
    return m.pieces[p];
  };
  const int64_t tile = tile0 + warp % kAcross;
  const int g = lane / 4, t = lane % 4;
  constexpr bool kWhole = kAcross == kWarps;
  float totals[kWhole ? kTiles : 1][4] = {};
  if (tile < m.tiles) {
    const Piece& piece = piece_of(tile);
    const int64_t within = tile - piece.first_tile;
    const int first = warp / kAcross * kAcross;
#pragma unroll 1
    for (int part = first; part < first + kAcross; ++part) {
      float sums[kTiles][4] = {};
      AddChunks<kind, kTiles>(m, piece, within, x, row0, x.chunks * part / kParts,
                              x.chunks * (part + 1) / kParts, lane, sums);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if constexpr (kWhole) {
            totals[i][e] += sums[i][e];
          } else {
            const int row = i * kTileRows + 2 * t + e % 2;
            const int at = (warp % kAcross * kParts + part) * kTiles * kTileRows + row;
            shared[at * kPitch + g + e / 2 * 8] = sums[i][e];
          }
        }
      }
    }
    if constexpr (kWhole) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          Finish(piece, x, activation, row0 + i * kTileRows + 2 * t + e % 2,
                 within * kTileOutputs + g + e / 2 * 8, totals[i][e]);
        }
      }
    }
  }
  if constexpr (!kWhole) {
    __syncthreads();
    constexpr int kRows = kTiles * kTileRows;
    for (int i = threadIdx.x; i < kAcross * kRows * kTileOutputs; i += kThreads) {
      const int output = i % kTileOutputs, row = i / kTileOutputs % kRows;
      const int across = i / kTileOutputs / kRows;
      if (tile0 + across >= m.tiles) break;
      float sum = 0;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        sum += shared[((across * kParts + part) * kRows + row) * kPitch + output];
      }
      const Piece& piece = piece_of(tile0 + across);
      Finish(piece, x, activation, row0 + row,
             (tile0 + across - piece.first_tile) * kTileOutputs + output, sum);
    }
  }
}

// Each input as the sum of three bf16 numbers, cut off one after the other: exact, but for numbers
// below 2^-110. Thread i has inputs 4 i to 4 i + 3 of the padded rows.
struct SplitRows {
  const float* x;
  int64_t in, padded, plane;
  __nv_bfloat16* to;
  __device__ void operator()(int64_t i) const {
    const int64_t at = 4 * i, row = at / padded, input = at % padded;
    uint32_t rest[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      rest[e] = input + e < in ? __float_as_uint(x[row * in + input + e]) : 0u;
    }
#pragma unroll
    for (int p = 0; p < 3; ++p) {
      *reinterpret_cast<uint2*>(to + p * plane + at) =
          make_uint2(UpperHalves(rest[0], rest[1]), UpperHalves(rest[2], rest[3]));
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        // Of an infinity nothing is left.
        const bool finite = isfinite(__uint_as_float(rest[e]));
        rest[e] = finite ? Rest(rest[e]) : 0u;
      }
    }
  }
};

// One warp for each chunk of a row: 8 bits with the sign, times a scale.
__global__ void __launch_bounds__(kThreads)
    RoundRows(const float* x, int64_t rows, int64_t in, int64_t chunks, int8_t* q, float* scale,
              float* scaled_sum) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (at >= rows * chunks) return;
  const int lane = threadIdx.x % 32;
  const int64_t i = at % chunks * kChunk + lane;
  const float value = i < in ? x[at / chunks * in + i] : 0.0f;
  const bool finite = __all_sync(0xffffffffu, isfinite(value));
  const float largest = WarpReduce<MaxOp>(finite ? fabsf(value) : 0.0f);
  const float inverse = largest > 1e-30f ? 127.0f / largest : 0.0f;
  const int rounded = finite ? __float2int_rn(value * inverse) : 0;
  q[at * kChunk + lane] = static_cast<int8_t>(rounded);
  const int sum = __reduce_add_sync(0xffffffffu, rounded);
  if (lane == 0) {
    const float of_chunk = !finite ? nanf("") : inverse > 0.0f ? largest / 127.0f : 0.0f;
    scale[at] = of_chunk;
    scaled_sum[at] = of_chunk * static_cast<float>(sum);
  }
}

bool Packed(RowWeights kind) {
  return kind == RowWeights::kPacked8 || kind == RowWeights::kPacked4;
}

int64_t Chunks(int64_t in) { return (in + kChunk - 1) / kChunk; }

// Rows that a block reads beyond the last are those of the workspace, whatever it holds.
int64_t Padded(int64_t rows) {
  return (rows + kMostTileRows - 1) / kMostTileRows * kMostTileRows;
}

struct Layout {
  WorkspaceLayout all;
  size_t data = 0, scale = 0, scaled_sum = 0;

  Layout(RowWeights kind, int64_t rows, int64_t in) {
    const auto chunks = static_cast<size_t>(Padded(rows) * Chunks(in));
    data = all.Add(chunks * kChunk * (Packed(kind) ? 1 : 3 * sizeof(__nv_bfloat16)));
    if (!Packed(kind)) return;
    scale = all.Add(chunks * sizeof(float));
    scaled_sum = all.Add(chunks * sizeof(float));
  }
};

KernelStatus Prepare(const RowProducts& p, int64_t most_rows, char* workspace, cudaStream_t stream,
                     Rows* rows) {
  const Layout layout(p.kind, most_rows, p.in);
  const int64_t chunks = Chunks(p.in);
  char* const data = workspace + layout.data;
  *rows = {p.rows, chunks, Padded(most_rows) * chunks * kChunk, reinterpret_cast<uint8_t*>(data),
           nullptr, nullptr};
  if (!Packed(p.kind)) {
    return ForEach(p.rows * chunks * kChunk / 4,
                   SplitRows{p.x, p.in, chunks * kChunk, rows->plane,
                             reinterpret_cast<__nv_bfloat16*>(data)},
                   stream, p.op);
  }
  auto* const scale = reinterpret_cast<float*>(workspace + layout.scale);
  auto* const scaled_sum = reinterpret_cast<float*>(workspace + layout.scaled_sum);
  rows->scale = scale;
  rows->scaled_sum = scaled_sum;
  const int64_t blocks = (p.rows * chunks + kWarps - 1) / kWarps;
  RoundRows<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      p.x, p.rows, p.in, chunks, reinterpret_cast<int8_t*>(data), scale, scaled_sum);
  return LaunchStatus(p.op);
}

template <RowWeights kind, int kTiles, int kAcross>
KernelStatus Launch(const RowProducts& p, const Matrices& m, const Rows& x, cudaStream_t stream) {
  constexpr size_t kShared =
      kAcross == kWarps ? 0
                        : sizeof(float) * kAcross * kParts * kTiles * kTileRows * kPitch;
  const auto kernel = ProductKernel<kind, kTiles, kAcross>;
  if (kShared > size_t{48} << 10) {
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        CudaStatus(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(kShared)),
                   p.op));
  }
  const int64_t rows = kTiles * kTileRows;
  const dim3 grid(static_cast<unsigned>((m.tiles + kAcross - 1) / kAcross),
                  static_cast<unsigned>((p.rows + rows - 1) / rows));
  kernel<<<grid, kThreads, kShared, stream>>>(m, x, p.activation);
  return LaunchStatus(p.op);
}

// Few rows leave the bandwidth to many small blocks; many want each block to use what it reads of x
// for many outputs.
template <RowWeights kind>
KernelStatus Choose(const RowProducts& p, const Matrices& m, const Rows& x, cudaStream_t stream) {
  if (p.rows <= kTileRows) return Launch<kind, 1, 1>(p, m, x, stream);
  if (p.rows <= 2 * kTileRows) return Launch<kind, 2, 1>(p, m, x, stream);
  if (p.rows <= 4 * kTileRows) return Launch<kind, 4, 2>(p, m, x, stream);
  constexpr int64_t kEnoughBlocks = 100;  // of a GPU's multiprocessors
  const int64_t blocks =
      (m.tiles + kWarps - 1) / kWarps * ((p.rows + kMostTileRows - 1) / kMostTileRows);
  if (blocks < kEnoughBlocks) return Launch<kind, 8, 4>(p, m, x, stream);
  return Launch<kind, 8, 8>(p, m, x, stream);
}

}  // namespace row_products

size_t RowProductsWorkspace(RowWeights kind, int64_t rows, int64_t in) {
  return row_products::Layout(kind, rows, in).all.bytes();
}

KernelStatus RunRowProducts(const RowProducts& problem, int64_t most_rows, void* workspace,
                            cudaStream_t stream) {
  using namespace row_products;
  Matrices m{};
  m.in = problem.in;
  const int64_t each = problem.kind == RowWeights::kF32 ? 4 : 8;  // of 16 bytes
  m.vectors = problem.in % 8 == 0 && problem.in % each == 0;
  for (int i = 0; i < problem.count; ++i) {
    const RowProduct& product = problem.products[i];
    m.pieces[i] = {static_cast<const uint8_t*>(product.weights), product.bias, product.y,
                   product.out, m.tiles};
    m.tiles += (product.out + kTileOutputs - 1) / kTileOutputs;
    m.vectors = m.vectors && reinterpret_cast<uintptr_t>(product.weights) % 16 == 0;
  }
  m.count = problem.count;
  if (problem.rows == 0 || m.tiles == 0) return KernelStatus::Ok();
  Rows x;
  ESPALIER_KERNEL_RETURN_IF_ERROR(
      Prepare(problem, most_rows, static_cast<char*>(workspace), stream, &x));
  switch (problem.kind) {
    case RowWeights::kF32:
      return Choose<RowWeights::kF32>(problem, m, x, stream);
    case RowWeights::kBF16:
      return Choose<RowWeights::kBF16>(problem, m, x, stream);
    case RowWeights::kPacked8:
      return Choose<RowWeights::kPacked8>(problem, m, x, stream);
    case RowWeights::kPacked4:
      return Choose<RowWeights::kPacked4>(problem, m, x, stream);
  }
  return KernelStatus::Ok();
}

KernelStatus RunRowProducts(const char* op, RowWeights kind, Activation activation,
                            int64_t most_rows, const KernelArgs& args) {
  const size_t count = args.outputs.size(), each = args.inputs.size() / count;
  const TensorView& x = args.inputs[0];
  for (size_t first = 0; first < count; first += RowProducts::kMost) {
    RowProducts problem;
    problem.op = op;
    problem.kind = kind;
    problem.activation = activation;
    problem.rows = RowsOf(x.dims());
    problem.in = x.dims().back();
    problem.x = x.as<float>();
    for (size_t i = first; i < std::min(count, first + RowProducts::kMost); ++i) {
      const size_t bias = i * each + 2;
      problem.products[problem.count++] = {
          args.inputs[i * each + 1].data,
          each > 2 && Has(args.inputs, bias) ? args.inputs[bias].as<float>() : nullptr,
          args.outputs[i].as<float>(), args.outputs[i].dims().back()};
    }
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        RunRowProducts(problem, most_rows, args.workspace, StreamOf(args)));
  }
  return KernelStatus::Ok();
}

}  // namespace espalier
