// What a product's operands look like to a warp: see row_products.cu.
#pragma once

#include <cuda_pipeline.h>

#include <cstdint>

#include "ops/cuda/activation.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/numeric.cuh"
#include "ops/cuda/row_products.h"
#include "ops/kernel/packed_weights.h"

namespace espalier {
namespace row_products {

constexpr int kWarps = kThreads / 32;
constexpr int kParts = 8;
constexpr int kChunk = 32;       // inputs
constexpr int kTileRows = 8;     // of x in a product of the tensor cores
constexpr int kTileOutputs = 16;
constexpr int kMostTileRows = 64;  // that a block holds

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

// Inputs of rows of x for one product of the tensor cores, from memory or from a stage in shared
// memory, which holds a chunk of kRows rows: what lane (g, t) multiplies (see Format).
template <bool kSums>
struct RoundedInputs {
  uint2 q;
  float scale[2], scaled_sum[2];

  __device__ __forceinline__ void Load(const Rows& x, int64_t row0, int64_t chunk, int lane) {
    const int g = lane / 4, t = lane % 4;
    q = *reinterpret_cast<const uint2*>(x.data + ((row0 + g) * x.chunks + chunk) * kChunk + 8 * t);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t at = (row0 + 2 * t + i) * x.chunks + chunk;
      scale[i] = x.scale[at];
      if (kSums) scaled_sum[i] = x.scaled_sum[at];
    }
  }

  // [rows][32] bytes, [rows] scales, [rows] sums.
  static constexpr int StageBytes(int rows) { return rows * (kChunk + 8); }
  template <int kRows>
  __device__ __forceinline__ void LoadStaged(const char* stage, int row0, int lane) {
    const int g = lane / 4, t = lane % 4;
    q = *reinterpret_cast<const uint2*>(stage + (row0 + g) * kChunk + 8 * t);
    const auto* const scales = reinterpret_cast<const float*>(stage + kRows * kChunk);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      scale[i] = scales[row0 + 2 * t + i];
      if (kSums) scaled_sum[i] = scales[kRows + row0 + 2 * t + i];
    }
  }
  template <int kRows>
  static __device__ __forceinline__ void Stage(const Rows& x, int64_t row0, int64_t chunk,
                                               char* stage) {
    for (int i = threadIdx.x; i < 2 * kRows; i += kThreads) {
      __pipeline_memcpy_async(
          stage + 16 * i, x.data + ((row0 + i / 2) * x.chunks + chunk) * kChunk + i % 2 * 16, 16);
    }
    for (int i = threadIdx.x; i < (kSums ? 2 : 1) * kRows; i += kThreads) {
      const float* const from = i < kRows ? x.scale : x.scaled_sum;
      __pipeline_memcpy_async(stage + kRows * kChunk + 4 * i,
                              from + (row0 + i % kRows) * x.chunks + chunk, 4);
    }
  }
};

// The three bf16 numbers of each input.
struct SplitInputs {
  uint4 plane[3];

  __device__ __forceinline__ void Load(const Rows& x, int64_t row0, int64_t chunk, int lane) {
    const auto* const at = reinterpret_cast<const __nv_bfloat16*>(x.data) +
                           ((row0 + lane / 4) * x.chunks + chunk) * kChunk + lane % 4 * 8;
#pragma unroll
    for (int p = 0; p < 3; ++p) plane[p] = *reinterpret_cast<const uint4*>(at + p * x.plane);
  }

  // [3][rows][64] bytes.
  static constexpr int StageBytes(int rows) { return 3 * rows * 2 * kChunk; }
  template <int kRows>
  __device__ __forceinline__ void LoadStaged(const char* stage, int row0, int lane) {
    const char* const at = stage + row0 * 2 * kChunk + 16 * lane;
#pragma unroll
    for (int p = 0; p < 3; ++p) {
      plane[p] = *reinterpret_cast<const uint4*>(at + p * kRows * 2 * kChunk);
    }
  }
  template <int kRows>
  static __device__ __forceinline__ void Stage(const Rows& x, int64_t row0, int64_t chunk,
                                               char* stage) {
    const auto* const from = reinterpret_cast<const __nv_bfloat16*>(x.data);
    for (int i = threadIdx.x; i < 3 * kRows * 4; i += kThreads) {
      const int p = i / (4 * kRows), row = i / 4 % kRows;
      __pipeline_memcpy_async(
          stage + 16 * i,
          from + p * x.plane + ((row0 + row) * x.chunks + chunk) * kChunk + i % 4 * 8, 16);
    }
  }
};

// Lane (g, t), g = lane / 4 and t = lane % 4, holds of a tile's weights outputs g and g + 8, and of
// x row g, inputs 8 t to 8 t + 7 of a chunk: the tensor cores multiply what lies at the same place,
// and do not ask which input it is. Its four sums are those of outputs g, g, g + 8, g + 8 and rows
// 2 t, 2 t + 1, 2 t, 2 t + 1.
template <RowWeights kind>
struct Format;

template <>
struct Format<RowWeights::kPacked8> {
  using X = RoundedInputs<false>;
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
  static __device__ __forceinline__ void Add(const Weights& w, const X& x, float (&sums)[4]) {
    int dots[4] = {};
    MultiplyI8(w.a, x.q.x, x.q.y, dots);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[i] = fmaf(SmallToFloat(dots[i]), w.scale[i / 2] * x.scale[i % 2], sums[i]);
    }
  }
};

template <>
struct Format<RowWeights::kPacked4> {
  using X = RoundedInputs<true>;
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
  static __device__ __forceinline__ void Add(const Weights& w, const X& x, float (&sums)[4]) {
    int dots[4] = {};
    MultiplyI8(w.a, x.q.x, x.q.y, dots);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[i] = fmaf(SmallToFloat(dots[i]), w.scale[i / 2] * x.scale[i % 2], sums[i]);
      sums[i] = fmaf(w.minimum[i / 2], x.scaled_sum[i % 2], sums[i]);
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
  using X = SplitInputs;
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
  static __device__ __forceinline__ void Add(const Weights& w, const X& x, float (&sums)[4]) {
    float of_chunk[4] = {};
#pragma unroll
    for (int p = 2; p >= 0; --p) w.Multiply(x.plane[p], of_chunk);
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
  using X = SplitInputs;
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
  static __device__ __forceinline__ void Add(const Weights& w, const X& x, float (&sums)[4]) {
    float of_chunk[4] = {};
    w.plane[2].Multiply(x.plane[0], of_chunk);
    w.plane[0].Multiply(x.plane[2], of_chunk);
    w.plane[1].Multiply(x.plane[1], of_chunk);
    w.plane[1].Multiply(x.plane[0], of_chunk);
    w.plane[0].Multiply(x.plane[1], of_chunk);
    w.plane[0].Multiply(x.plane[0], of_chunk);
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] += of_chunk[i];
  }
};

// The piece that tile `tile` of all pieces belongs to.
__device__ __forceinline__ const Piece& PieceOf(const Matrices& m, int64_t tile) {
  int p = 0;
  while (p + 1 < m.count && tile >= m.pieces[p + 1].first_tile) ++p;
  return m.pieces[p];
}

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

}  // namespace row_products
}  // namespace espalier
