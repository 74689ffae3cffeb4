// Register fragments of the operands of mixed_input_gemm.cu, for mma.m16n8k16 (bf16) and
// mma.m16n8k32 (s8): PTX ISA, "Matrix fragments for mma".
//
// A is a tile of weights (16 outputs), B a tile of x (8 rows), C their 16 x 8 sums. With groupID
// g = lane / 4 and threadID_in_group t = lane % 4, a lane holds outputs g and g + 8 of A and row g
// of B, at inputs 8 t to 8 t + 7 of a chunk. PTX assigns other k indices to these registers, but
// the sum over k only needs A and B to agree. A lane's C holds outputs g, g, g + 8, g + 8 of rows
// 2 t, 2 t + 1, 2 t, 2 t + 1.
#pragma once

#include <cuda_pipeline.h>

#include <cstdint>
#include <cstring>

#include "ops/cuda/gemm/bf16x3_split.cuh"
#include "ops/cuda/gemm/mixed_input_gemm.h"
#include "ops/cuda/math/activation.cuh"
#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/runtime/launch.cuh"
#include "ops/kernel/packed_weights.h"

namespace espalier {
namespace mixed_input_gemm {

constexpr int kWarps = kThreads / 32;
constexpr int kSplitK = 8;
constexpr int kChunk = 32;        // of k
constexpr int kTileRows = 8;      // n of an mma: rows of x
constexpr int kTileOutputs = 16;  // m of an mma: outputs
constexpr int kBlockRows = 64;    // of a block, at most

static_assert(kChunk == kPackGroup && kTileOutputs == kPackOutputs);

struct WeightMatrix {
  const uint8_t* weights;
  const float* bias;
  float* y;
  int64_t out;
  int64_t first_tile;  // among the output tiles of all matrices
};

struct Matrices {
  WeightMatrix matrices[MixedInputGemm::kMaxProducts];
  int count;
  int64_t tiles, in;
  bool whole;  // every chunk is full and aligned to 16 bytes
};

// x, split or quantized, packed in the order in which lanes read it: [rows / 8][chunks] of
// Inputs::kBytes.
struct PackedX {
  int64_t rows;
  int chunks;
  const uint8_t* data;
};

// c = a b in int8, converted to float: exact below 2^22 in magnitude. The accumulator starts at the
// bits of 1.5 * 2^23, whose unit in the last place is 1, so its bits are a float at the end.
__device__ __forceinline__ void MmaM16N8K32I8(const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                              float (&c)[4]) {
  constexpr int kBits = 0x4b400000;
  int d[4];
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%10,%10,%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(kBits));
#pragma unroll
  for (int i = 0; i < 4; ++i) c[i] = __int_as_float(d[i]) - 12582912.0f;
}

// First chunk of split-K slice p. Slices consist of whole units of packed weights (two chunks).
__device__ __forceinline__ int SplitKBegin(int chunks, int p) {
  return p == kSplitK ? chunks : chunks * p / kSplitK / 2 * 2;
}

// B fragment in int8. A chunk of eight rows in memory: [8][32] numbers, [8] scales, [8] scales
// times the sum of the row's numbers.
struct QuantizedInputs {
  static constexpr int kBytes = kTileRows * (kChunk + 8);
  uint2 q;
  float2 scale, scaled_sum;

  // A lane's position in a chunk.
  struct Cursor {
    const uint8_t* q;
    const uint8_t* scales;
    __device__ __forceinline__ Cursor(const uint8_t* tile, int lane)
        : q(tile + 8 * lane), scales(tile + kTileRows * kChunk + 8 * (lane % 4)) {}
    __device__ __forceinline__ void Advance(int64_t bytes) {
      q += bytes;
      scales += bytes;
    }
  };
  __device__ __forceinline__ void Load(const Cursor& at, int bytes) {
    q = *reinterpret_cast<const uint2*>(at.q + bytes);
    scale = *reinterpret_cast<const float2*>(at.scales + bytes);
    scaled_sum = *reinterpret_cast<const float2*>(at.scales + bytes + 4 * kTileRows);
  }
};

// B fragment in three bf16 planes. A chunk in memory: [3][8][32].
struct SplitInputs {
  static constexpr int kPlane = kTileRows * kChunk * 2;  // bytes
  static constexpr int kBytes = 3 * kPlane;
  uint4 plane[3];

  struct Cursor {
    const uint8_t* first;
    __device__ __forceinline__ Cursor(const uint8_t* tile, int lane) : first(tile + 16 * lane) {}
    __device__ __forceinline__ void Advance(int64_t bytes) { first += bytes; }
  };
  __device__ __forceinline__ void Load(const Cursor& at, int bytes) {
#pragma unroll
    for (int p = 0; p < 3; ++p) {
      plane[p] = *reinterpret_cast<const uint4*>(at.first + bytes + p * kPlane);
    }
  }
};

// How to multiply with weights of one format. Cursor: a lane's position in a tile of weights, at an
// even chunk. Load: reads the lane's part of the n-th chunk from there. Unpack: turns that into an
// A fragment. Step (kSteps in order): issues one mma with eight rows. Finish: adds the chunk's
// result to `sums`. For weights in shared memory see Stage (mixed_input_gemm_stages.cuh).
template <GemmWeightFormat kind>
struct WeightLayout;

// Multiplies a chunk with kTiles tiles of rows. The mma of one tile depend on each other, so those
// of all tiles are interleaved.
template <typename F, int kTiles, int kStep = 0>
__device__ __forceinline__ void AddTiles(const typename F::Weights& weights,
                                         const typename F::Inputs (&x)[kTiles],
                                         float (&of_chunk)[kTiles][4], float (&sums)[kTiles][4]) {
  if constexpr (kStep < F::kSteps) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) F::template Step<kStep>(weights, x[i], of_chunk[i]);
    AddTiles<F, kTiles, kStep + 1>(weights, x, of_chunk, sums);
  } else {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) F::Finish(weights, x[i], of_chunk[i], sums[i]);
  }
}

// Each lane loads one of the scales that the four lanes of its quad need; fetches that of lane t.
__device__ __forceinline__ float FromQuadLane(float value, int lane, int t) {
  return __shfl_sync(0xffffffffu, value, lane - lane % 4 + t);
}

// A lane's position in a block of packed weights: its words, from number `word` of a group on, and
// its scale.
struct PackedCursor {
  const uint8_t* words;
  const uint8_t* scale;
  PackedCursor() = default;
  __device__ __forceinline__ PackedCursor(const PackedWeights& shape, const WeightMatrix& matrix,
                                          int64_t tile, int word, int scale_number) {
    const uint8_t* const block = matrix.weights + tile * shape.block_bytes();
    words = block + shape.numbers_at(0) + word * 4;
    scale = block + scale_number * 2;
  }
  __device__ __forceinline__ void Move(int bytes) {
    words += bytes;
    scale += bytes;
  }
};

template <>
struct WeightLayout<GemmWeightFormat::kPacked8> {
  using Inputs = QuantizedInputs;
  static constexpr int kGroup = kTileOutputs * kChunk, kUnit = 64 + 2 * kGroup;  // bytes
  struct Cursor : PackedCursor {
    Cursor() = default;
    __device__ __forceinline__ Cursor(const Matrices& m, const WeightMatrix& matrix, int64_t tile,
                                      int lane)
        : PackedCursor({8, matrix.out, m.in}, matrix, tile,
                       2 * (lane % 4) * kTileOutputs + lane / 4, lane % 2 * 8 + lane / 4) {}
    __device__ __forceinline__ void Advance(int chunks) { Move(chunks / 2 * kUnit); }
  };

  struct Raw {
    uint32_t words[4];
    __half scale;
  };
  static __device__ __forceinline__ Raw Load(const Cursor& at, int n) {
    const auto* const words =
        reinterpret_cast<const uint32_t*>(at.words + n / 2 * kUnit + n % 2 * kGroup);
    Raw raw;
#pragma unroll
    for (int i = 0; i < 4; ++i) raw.words[i] = __ldcs(words + i / 2 * kTileOutputs + 8 * (i % 2));
    raw.scale = __ldcs(reinterpret_cast<const __half*>(at.scale + n / 2 * kUnit + n % 2 * 32));
    return raw;
  }

  struct Weights {
    uint32_t a[4];
    float scale[2];
  };
  static __device__ __forceinline__ Weights Unpack(const Raw& raw, int lane) {
    Weights w;
#pragma unroll
    for (int i = 0; i < 4; ++i) w.a[i] = raw.words[i] ^ 0x80808080u;  // minus 128, as int8
    const float own = __half2float(raw.scale);
#pragma unroll
    for (int i = 0; i < 2; ++i) w.scale[i] = FromQuadLane(own, lane, i);
    return w;
  }
  static constexpr int kSteps = 1;
  template <int kStep>
  static __device__ __forceinline__ void Step(const Weights& w, const Inputs& x, float (&dots)[4]) {
    MmaM16N8K32I8(w.a, x.q.x, x.q.y, dots);
  }
  static __device__ __forceinline__ void Finish(const Weights& w, const Inputs& x,
                                                const float (&dots)[4], float (&sums)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float scale = w.scale[i / 2] * (i % 2 == 0 ? x.scale.x : x.scale.y);
      sums[i] = fmaf(dots[i], scale, sums[i]);
    }
  }
};

template <>
struct WeightLayout<GemmWeightFormat::kPacked4> {
  using Inputs = QuantizedInputs;
  static constexpr int kUnit = 64 + kTileOutputs * kChunk / 2;  // bytes of a chunk
  struct Cursor : PackedCursor {
    Cursor() = default;
    __device__ __forceinline__ Cursor(const Matrices& m, const WeightMatrix& matrix, int64_t tile,
                                      int lane)
        : PackedCursor({4, matrix.out, m.in}, matrix, tile, lane % 4 * kTileOutputs + lane / 4,
                       lane % 4 * 8 + lane / 4) {}
    __device__ __forceinline__ void Advance(int chunks) { Move(chunks * kUnit); }
  };

  struct Raw {
    uint32_t words[2];
    __half scale;  // t = 0, 1: scale of output g, g + 8; t = 2, 3: minimum of output g, g + 8
  };
  static __device__ __forceinline__ Raw Load(const Cursor& at, int n) {
    const auto* const words = reinterpret_cast<const uint32_t*>(at.words + n * kUnit);
    return {{__ldcs(words), __ldcs(words + 8)},
            __ldcs(reinterpret_cast<const __half*>(at.scale + n * kUnit))};
  }

  struct Weights {
    uint32_t a[4];
    float scale[2], minimum[2];
  };
  static __device__ __forceinline__ Weights Unpack(const Raw& raw, int lane) {
    Weights w;
    const float own = __half2float(raw.scale);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      w.a[i] = raw.words[i] & 0x0f0f0f0fu;
      w.a[2 + i] = raw.words[i] >> 4 & 0x0f0f0f0fu;
      w.scale[i] = FromQuadLane(own, lane, i);
      w.minimum[i] = FromQuadLane(own, lane, 2 + i);
    }
    return w;
  }
  static constexpr int kSteps = 1;
  template <int kStep>
  static __device__ __forceinline__ void Step(const Weights& w, const Inputs& x, float (&dots)[4]) {
    MmaM16N8K32I8(w.a, x.q.x, x.q.y, dots);
  }
  static __device__ __forceinline__ void Finish(const Weights& w, const Inputs& x,
                                                const float (&dots)[4], float (&sums)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float scale = w.scale[i / 2] * (i % 2 == 0 ? x.scale.x : x.scale.y);
      sums[i] = fmaf(dots[i], scale, sums[i]);
      sums[i] = fmaf(w.minimum[i / 2], i % 2 == 0 ? x.scaled_sum.x : x.scaled_sum.y, sums[i]);
    }
  }
};

// A lane's position in outputs g and g + 8 of a tile in f32, bf16 or f16. Outputs beyond the last
// are clamped to the last.
template <typename T>
struct RowCursor {
  const T* low;
  const T* high;
  int left;  // inputs from the lane's first one on
  bool whole;

  RowCursor() = default;
  __device__ __forceinline__ RowCursor(const Matrices& m, const WeightMatrix& matrix, int64_t tile,
                                       int lane) {
    const int first = lane % 4 * 8;
    const auto* const weights = reinterpret_cast<const T*>(matrix.weights);
    const int64_t output = tile * kTileOutputs + lane / 4;
    low = weights + min(output, matrix.out - 1) * m.in + first;
    high = weights + min(output + 8, matrix.out - 1) * m.in + first;
    left = static_cast<int>(m.in) - first;
    whole = m.whole;
  }
  __device__ __forceinline__ void Advance(int chunks) {
    low += chunks * kChunk;
    high += chunks * kChunk;
    left -= chunks * kChunk;
  }

  // Reads eight consecutive inputs of chunk n; zeros beyond the last.
  template <int kVectors>
  __device__ __forceinline__ void Read(const T* row, int n, uint4 (&to)[kVectors]) const {
    const T* const from = row + n * kChunk;
    if (whole) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) to[v] = __ldcs(reinterpret_cast<const uint4*>(from) + v);
      return;
    }
    T elements[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      elements[e] = n * kChunk + e < left ? from[e] : FromFloat<T>(0.0f);
    }
    memcpy(to, elements, sizeof(to));
  }
};

// A fragment of a chunk: two mma of 16 inputs.
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
  template <int kHalf, bool kFirst>
  __device__ __forceinline__ void Multiply(const uint4& b, float (&sums)[4]) const {
    MmaM16N8K16Bf16<kFirst>(a[kHalf], kHalf == 0 ? b.x : b.z, kHalf == 0 ? b.y : b.w, sums);
  }
};

// A fragment of weights that are sums of kPlanes bf16 numbers, multiplied with x in three planes.
template <int kPlanes>
struct SplitOperand {
  Fragments plane[kPlanes];

  static constexpr int kProducts = SplitProducts<kPlanes>::kCount;
  template <int kStep>
  __device__ __forceinline__ void Step(const SplitInputs& x, float (&of_chunk)[4]) const {
    constexpr auto planes = SplitProducts<kPlanes>::Of(kStep / 2);
    plane[planes.narrow].template Multiply<kStep % 2, kStep == 0>(x.plane[planes.wide], of_chunk);
  }
};

// Shared by the layouts of weights that are not packed.
template <typename T, typename W>
struct RowFormat {
  using Inputs = SplitInputs;
  using Cursor = RowCursor<T>;
  using Weights = W;
  static constexpr int kSteps = 2 * W::kProducts;
  template <int kStep>
  static __device__ __forceinline__ void Step(const W& w, const Inputs& x, float (&of_chunk)[4]) {
    w.template Step<kStep>(x, of_chunk);
  }
  static __device__ __forceinline__ void Finish(const W&, const Inputs&, const float (&of_chunk)[4],
                                                float (&sums)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] += of_chunk[i];
  }
  struct Raw {
    uint4 low[sizeof(T) / 2], high[sizeof(T) / 2];
  };
  static __device__ __forceinline__ Raw Load(const Cursor& at, int n) {
    Raw raw;
    at.Read(at.low, n, raw.low);
    at.Read(at.high, n, raw.high);
    return raw;
  }
};

template <>
struct WeightLayout<GemmWeightFormat::kBF16> : RowFormat<__nv_bfloat16, SplitOperand<1>> {
  static __device__ __forceinline__ Weights Unpack(const Raw& raw, int) {
    Weights w;
    w.plane[0].Set({raw.low[0].x, raw.low[0].y, raw.low[0].z, raw.low[0].w},
                   {raw.high[0].x, raw.high[0].y, raw.high[0].z, raw.high[0].w});
    return w;
  }
};

// Splits f32 numbers of two outputs into bf16 planes by repeated truncation.
template <int kPlanes>
struct SplitFragments : SplitOperand<kPlanes> {
  SplitFragments() = default;
  __device__ __forceinline__ explicit SplitFragments(uint32_t (&rest)[2][8]) {
#pragma unroll
    for (int p = 0; p < kPlanes; ++p) {
      uint32_t pairs[2][4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          pairs[half][i] = TruncatePairToBf16(rest[half][2 * i], rest[half][2 * i + 1]);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) rest[half][i] = Bf16Remainder(rest[half][i]);
      }
      this->plane[p].Set(pairs[0], pairs[1]);
    }
  }
};

template <>
struct WeightLayout<GemmWeightFormat::kF32> : RowFormat<float, SplitFragments<3>> {
  static __device__ __forceinline__ Weights Unpack(const Raw& raw, int) {
    uint32_t numbers[2][8] = {{raw.low[0].x, raw.low[0].y, raw.low[0].z, raw.low[0].w, raw.low[1].x,
                               raw.low[1].y, raw.low[1].z, raw.low[1].w},
                              {raw.high[0].x, raw.high[0].y, raw.high[0].z, raw.high[0].w,
                               raw.high[1].x, raw.high[1].y, raw.high[1].z, raw.high[1].w}};
    return Weights(numbers);
  }
};

// Two bf16 numbers (8 bits each) hold the 11 bits of an f16 number exactly.
template <>
struct WeightLayout<GemmWeightFormat::kF16> : RowFormat<__half, SplitFragments<2>> {
  static __device__ __forceinline__ Weights Unpack(const Raw& raw, int) {
    const uint32_t pairs[2][4] = {{raw.low[0].x, raw.low[0].y, raw.low[0].z, raw.low[0].w},
                                  {raw.high[0].x, raw.high[0].y, raw.high[0].z, raw.high[0].w}};
    uint32_t numbers[2][8];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        Widen(pairs[half][i], numbers[half][2 * i], numbers[half][2 * i + 1]);
      }
    }
    return Weights(numbers);
  }
};

// The matrix that output tile `tile`, counted over all matrices, belongs to.
__device__ __forceinline__ const WeightMatrix& MatrixOfTile(const Matrices& m, int64_t tile) {
  int p = 0;
  while (p + 1 < m.count && tile >= m.matrices[p + 1].first_tile) ++p;
  return m.matrices[p];
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

// Epilogue: adds the bias, applies the activation and stores one element of y.
__device__ __forceinline__ void Finish(const WeightMatrix& matrix, const PackedX& x,
                                       Activation activation, int64_t row, int64_t output,
                                       float sum) {
  if (row >= x.rows || output >= matrix.out) return;
  if (matrix.bias != nullptr) sum += matrix.bias[output];
  matrix.y[row * matrix.out + output] = Activate(activation, sum);
}

}  // namespace mixed_input_gemm
}  // namespace espalier
