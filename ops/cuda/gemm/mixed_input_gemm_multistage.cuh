// Kernel of mixed_input_gemm.cu for many rows: a multistage pipeline (as CUTLASS's MmaMultistage).
// A block computes 128 outputs of 64 rows. Weights and x arrive in shared memory several stages
// ahead of their use, and the fragments of a chunk are loaded while the chunk before it is
// multiplied. REQUIRES: Matrices::whole, and weights that are not f32: splitting f32 weights is
// most of the work, and SkinnyKernel splits each weight once.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cuda/gemm/mixed_input_gemm_fragments.cuh"
#include "ops/cuda/gemm/mixed_input_gemm_stages.cuh"

namespace espalier {
namespace mixed_input_gemm {

// The tile of a block, how its warps share it, and its shared memory.
template <GemmWeightFormat kind>
struct MultistageShape {
  // A warp copies one tile of outputs and one of rows; it multiplies kOut tiles of outputs with kIn
  // tiles of rows.
  static constexpr int kTiles = kWarps, kRows = kTiles * kTileRows;
  static_assert(kRows == kBlockRows);
  static constexpr int kOut = 2, kIn = kTiles / kOut, kAcross = kWarps / kOut;

  static constexpr int kPer = Stage<kind>::kChunks;
  static_assert(kPer % 2 == 0, "slices begin at even chunks, and operands are double-buffered");
  // Bytes of a tile of outputs, of a tile of rows, and of a stage.
  static constexpr int kOutTile = Stage<kind>::kBytes,
                       kInTile = kPer * WeightLayout<kind>::Inputs::kBytes;
  static constexpr int kStage = kTiles * (kOutTile + kInTile);
  static constexpr int kStages = std::min(5, 226 * 1024 / kStage);
  static_assert(kStages >= 2);
  static constexpr size_t kBytes = size_t{kStages} * kStage;
};

// Grid: (blocks of rows, groups of 8 output tiles), so that blocks that read the same weights run
// at about the same time.
template <GemmWeightFormat kind>
__global__ void __launch_bounds__(kThreads, 1)
    MultistageKernel(Matrices m, PackedX x, Activation activation) {
  using F = WeightLayout<kind>;
  using Inputs = typename F::Inputs;
  using Shape = MultistageShape<kind>;
  constexpr int kRows = Shape::kRows, kPer = Shape::kPer, kStages = Shape::kStages;
  constexpr int kOut = Shape::kOut, kIn = Shape::kIn;
  extern __shared__ __align__(16) uint8_t stages[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int64_t row0 = static_cast<int64_t>(blockIdx.x) * kRows;
  const int64_t tile0 = static_cast<int64_t>(blockIdx.y) * kWarps;
  const int out0 = warp % Shape::kAcross * kOut, in0 = warp / Shape::kAcross * kIn;

  // Clamps tiles beyond the last to the last.
  const int64_t copied = min(tile0 + warp, m.tiles - 1);
  const WeightMatrix& matrix = MatrixOfTile(m, copied);
  typename Stage<kind>::Source source(m, matrix, copied - matrix.first_tile, lane);
  const auto copy_weights = [&](int number, int slot) {
    if (number * kPer < x.chunks) {
      source.Copy(stages + slot * Shape::kStage + warp * Shape::kOutTile);
    }
  };
  // Also copies chunks beyond the end, which nothing uses: the workspace is padded by a stage.
  const uint8_t* rows = x.data + 16 * lane +
                        (row0 / kTileRows + warp) * x.chunks * static_cast<int64_t>(Inputs::kBytes);
  const auto copy_rows = [&](int number, int slot) {
    if (number * kPer < x.chunks) {
      uint8_t* const to = stages + slot * Shape::kStage + Shape::kTiles * Shape::kOutTile +
                          warp * Shape::kInTile + 16 * lane;
#pragma unroll
      for (int i = 0; i < Shape::kInTile; i += 512) {
        if (i + 512 <= Shape::kInTile || i + 16 * lane < Shape::kInTile) {
          __pipeline_memcpy_async(to + i, rows + i, 16);
        }
      }
      rows += Shape::kInTile;
    }
    __pipeline_commit();
  };

  float totals[kOut][kIn][4] = {}, sums[kOut][kIn][4] = {};
  int part = 0, next = SplitKBegin(x.chunks, 1);
  const auto end_part = [&] {
#pragma unroll
    for (int o = 0; o < kOut; ++o) {
#pragma unroll
      for (int i = 0; i < kIn; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          totals[o][i][e] += sums[o][i][e];
          sums[o][i][e] = 0;
        }
      }
    }
    ++part;
    next = SplitKBegin(x.chunks, part + 1);
  };

  struct Operands {
    Inputs inputs[kIn];
    typename F::Raw raw[kOut];
  } operands[2];
  int slot = 0;
  // Loads the o-th of kOut shares of the operands of a chunk.
  const auto load = [&](int o, int u, Operands& to) {
    const uint8_t* const stage = stages + slot * Shape::kStage;
    const typename Inputs::Cursor at(stage + Shape::kTiles * Shape::kOutTile + in0 * Shape::kInTile,
                                     lane);
    to.raw[o] = Stage<kind>::Load(stage + (out0 + o) * Shape::kOutTile, u, lane);
#pragma unroll
    for (int i = o * kIn / kOut; i < (o + 1) * kIn / kOut; ++i) {
      to.inputs[i].Load(at, i * Shape::kInTile + u * Inputs::kBytes);
    }
  };
  const auto add = [&](int o, const Operands& from) {
    float of_chunk[kIn][4];
    AddTiles<F>(F::Unpack(from.raw[o], lane), from.inputs, of_chunk, sums[o]);
  };

  LaunchDependentGrids();
  for (int s = 0; s < kStages; ++s) copy_weights(s, s);
  WaitOnDependentGrids();
  for (int s = 0; s < kStages; ++s) copy_rows(s, s);
  __pipeline_wait_prior(kStages - 1);
  __syncthreads();
#pragma unroll
  for (int o = 0; o < kOut; ++o) load(o, 0, operands[0]);
  int number = 0;
  for (int c0 = 0; c0 < x.chunks; c0 += kPer, ++number) {
#pragma unroll
    for (int u = 0; u < kPer; ++u) {
      const int chunk = c0 + u;
      if (chunk >= x.chunks) break;
      if (u % 2 == 0) {
        while (chunk >= next) end_part();
      }
      if (u + 1 == kPer) {
        // The next stage has arrived, and the operands of this stage are in registers.
        __pipeline_wait_prior(kStages - 2);
        __syncthreads();
        copy_weights(number + kStages, slot);
        copy_rows(number + kStages, slot);
        slot = slot + 1 == kStages ? 0 : slot + 1;
      }
#pragma unroll
      for (int o = 0; o < kOut; ++o) {
        load(o, (u + 1) % kPer, operands[(u + 1) % 2]);
        add(o, operands[u % 2]);
      }
    }
  }
  while (part < kSplitK) end_part();
#pragma unroll
  for (int o = 0; o < kOut; ++o) {
    const int64_t tile = tile0 + out0 + o;
    if (tile >= m.tiles) return;
    const WeightMatrix& here = MatrixOfTile(m, tile);
#pragma unroll
    for (int i = 0; i < kIn; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        Finish(here, x, activation, row0 + (in0 + i) * kTileRows + 2 * t + e % 2,
               (tile - here.first_tile) * kTileOutputs + g + e / 2 * 8, totals[o][i][e]);
      }
    }
  }
}

}  // namespace mixed_input_gemm
}  // namespace espalier
