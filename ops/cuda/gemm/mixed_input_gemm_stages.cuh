// Shared-memory stages of weights for mixed_input_gemm_multistage.cuh. A stage holds a few chunks
// of a tile of 16 outputs. One warp copies stages with cp.async ahead of their use; any warp then
// loads A fragments from there without bank conflicts, as WeightLayout::Load does from global
// memory. REQUIRES: Matrices::whole.
#pragma once

#include <cuda_pipeline.h>

#include <cstdint>

#include "ops/cuda/gemm/mixed_input_gemm_fragments.cuh"

namespace espalier {
namespace mixed_input_gemm {

constexpr int kStageChunks = 4;  // at most

template <GemmWeightFormat kind>
struct Stage;

// Weights in bf16 or f16: [chunk][16 outputs][4 lanes] of 16 bytes, a lane's eight inputs.
template <GemmWeightFormat kind, typename T>
struct RowStage {
  static constexpr int kChunks = 2;
  static constexpr int kPieces = 4;  // 16-byte pieces of a row's chunk
  static constexpr int kLine = 64,
                       kPlane = kTileOutputs * kLine;  // bytes of a row's chunk, and of a chunk
  static constexpr int kBytes = kChunks * kPlane;
  static_assert(sizeof(T) * kChunk == kLine);

  // What one lane copies of a tile, kChunks at a time. Clamps outputs beyond the last to the last.
  struct Source {
    static constexpr int kRows = kTileOutputs * kPieces / 32;  // of a chunk
    const T* next[kRows];
    int chunk, chunks, at;

    __device__ __forceinline__ Source(const Matrices& m, const WeightMatrix& matrix, int64_t tile,
                                      int lane)
        : chunk(0), chunks(static_cast<int>((m.in + kChunk - 1) / kChunk)) {
      const int part = lane % kPieces, first_output = lane / kPieces;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int64_t output = tile * kTileOutputs + i * (32 / kPieces) + first_output;
        next[i] = reinterpret_cast<const T*>(matrix.weights) + min(output, matrix.out - 1) * m.in +
                  part * (16 / sizeof(T));
      }
      at = first_output * kLine + part * 16;
    }
    __device__ __forceinline__ void Copy(uint8_t* to) {
#pragma unroll
      for (int n = 0; n < kChunks; ++n) {
        if (chunk + n >= chunks) break;
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          __pipeline_memcpy_async(to + at + n * kPlane + i * (32 / kPieces) * kLine,
                                  next[i] + n * kChunk, 16);
        }
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) next[i] += kChunks * kChunk;
      chunk += kChunks;
    }
  };

  using Raw = typename WeightLayout<kind>::Raw;
  static __device__ __forceinline__ Raw Load(const uint8_t* tile, int chunk, int lane) {
    const uint8_t* const at = tile + chunk * kPlane + 16 * lane;
    Raw raw;
    raw.low[0] = *reinterpret_cast<const uint4*>(at);
    raw.high[0] = *reinterpret_cast<const uint4*>(at + 8 * kLine);
    return raw;
  }
};

template <>
struct Stage<GemmWeightFormat::kBF16> : RowStage<GemmWeightFormat::kBF16, __nv_bfloat16> {};
template <>
struct Stage<GemmWeightFormat::kF16> : RowStage<GemmWeightFormat::kF16, __half> {};

// Units of packed weights as lines of 64 bytes, kPitch bytes apart: one line of scales, then lines
// of the words of 16 outputs.
template <int kBits, int kPitchBytes>
struct PackedStage {
  static constexpr int kChunks = kStageChunks, kPitch = kPitchBytes;
  static constexpr int kUnitChunks = kBits == 8 ? 2 : 1, kUnitLines = 1 + kUnitChunks * kBits;
  static constexpr int kUnit = kUnitLines * kPitch;  // bytes
  static constexpr int kLines = kChunks / kUnitChunks * kUnitLines;
  static constexpr int kBytes = kLines * kPitch;

  struct Source {
    const uint8_t* next;
    int left, at, lane;  // bytes from `next` to the block's end

    __device__ __forceinline__ Source(const Matrices& m, const WeightMatrix& matrix, int64_t tile,
                                      int lane)
        : lane(lane) {
      const PackedWeights shape{kBits, matrix.out, m.in};
      next = matrix.weights + tile * shape.block_bytes() + 16 * lane;
      left = static_cast<int>(shape.block_bytes()) - 16 * lane;
      at = lane / 4 * kPitch + lane % 4 * 16;
    }
    __device__ __forceinline__ void Copy(uint8_t* to) {
      // 32 lanes copy eight lines.
#pragma unroll
      for (int i = 0; i < (kLines + 7) / 8; ++i) {
        if (8 * i + lane / 4 < kLines && 512 * i < left) {
          __pipeline_memcpy_async(to + at + i * 8 * kPitch, next + 512 * i, 16);
        }
      }
      next += kLines * 64;
      left -= kLines * 64;
    }
  };
};

template <>
struct Stage<GemmWeightFormat::kPacked8> : PackedStage<8, 80> {
  using Raw = WeightLayout<GemmWeightFormat::kPacked8>::Raw;
  static __device__ __forceinline__ Raw Load(const uint8_t* tile, int chunk, int lane) {
    const int g = lane / 4, t = lane % 4;
    const uint8_t* const unit = tile + chunk / 2 * kUnit;
    const uint8_t* const words = unit + (1 + chunk % 2 * 8 + 2 * t) * kPitch + 4 * g;
    Raw raw;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      raw.words[i] = *reinterpret_cast<const uint32_t*>(words + i / 2 * kPitch + i % 2 * 32);
    }
    raw.scale = *reinterpret_cast<const __half*>(unit + chunk % 2 * 32 + (lane % 2 * 8 + g) * 2);
    return raw;
  }
};

template <>
struct Stage<GemmWeightFormat::kPacked4> : PackedStage<4, 96> {
  using Raw = WeightLayout<GemmWeightFormat::kPacked4>::Raw;
  static __device__ __forceinline__ Raw Load(const uint8_t* tile, int chunk, int lane) {
    const int g = lane / 4, t = lane % 4;
    const uint8_t* const unit = tile + chunk * kUnit;
    const uint8_t* const words = unit + (1 + t) * kPitch + 4 * g;
    return {
        {*reinterpret_cast<const uint32_t*>(words), *reinterpret_cast<const uint32_t*>(words + 32)},
        *reinterpret_cast<const __half*>(unit + (t * 8 + g) * 2)};
  }
};

}  // namespace mixed_input_gemm
}  // namespace espalier
