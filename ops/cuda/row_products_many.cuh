// Products of many rows: see row_products.cu. A block has 128 outputs of 8 kTiles rows, a warp 16
// of the outputs; x comes through shared memory, ahead of its use.
#pragma once

#include <cstdint>

#include "ops/cuda/row_formats.cuh"

namespace espalier {
namespace row_products {

constexpr int kStages = 3;

// Blocks that share a product: each has some of the parts of its inputs, and the last to come adds
// up what all have left in `sums`.
struct Shared {
  int parts = kParts;            // of a block; kParts: nothing is shared
  float* sums = nullptr;         // [kParts][tiles][rows][kTileOutputs]
  int64_t rows = 0;              // of the grid
  uint32_t* arrivals = nullptr;  // zeros

  __device__ float* At(const Matrices& m, int part, int64_t tile, int64_t row) const {
    return sums + ((part * m.tiles + tile) * rows + row) * kTileOutputs;
  }
};

// Chunks in a stage, and chunks of the weights that a warp reads ahead. Half of it: blocks of a
// multiprocessor, whose registers hold no more.
constexpr int PerStage(RowWeights kind) {
  return kind == RowWeights::kPacked8 || kind == RowWeights::kPacked4 ? 4 : 2;
}

template <RowWeights kind, int kTiles>
constexpr size_t ManyBytes() {
  return size_t{kStages} * kTiles * PerStage(kind) * Format<kind>::Inputs::kBytes;
}

// Grid: groups of 8 tiles of outputs, by blocks of rows, by shares of the parts.
template <RowWeights kind, int kTiles>
__global__ void __launch_bounds__(kThreads, PerStage(kind) / 2)
    ManyKernel(Matrices m, Rows x, Activation activation, Shared shared) {
  using F = Format<kind>;
  using Inputs = typename F::Inputs;
  constexpr int kRows = kTiles * kTileRows, kPer = PerStage(kind);
  constexpr int kTileStage = kPer * Inputs::kBytes;  // of a tile of rows
  constexpr int kCopies = kTiles * kTileStage / 16;
  extern __shared__ __align__(16) uint8_t stages[];
  __shared__ bool last;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) * kRows;
  const int64_t tile0 = static_cast<int64_t>(blockIdx.x) * kWarps, tile = tile0 + warp;
  const bool active = tile < m.tiles;
  const Piece& piece = PieceOf(m, active ? tile : 0);
  const int64_t within = active ? tile - piece.first_tile : 0;
  const bool shares = shared.parts < kParts;
  int part = static_cast<int>(blockIdx.z) * shared.parts;
  const int end_part = part + shared.parts;
  const int begin = BeginOf(x.chunks, part), end = BeginOf(x.chunks, end_part);

  typename F::Cursor cursor(m, piece, within, lane);
  cursor.Advance(begin);
  typename F::Raw raw[kPer];
  LaunchNext();
#pragma unroll
  for (int u = 0; u < kPer; ++u) {
    if (active && begin + u < end) raw[u] = F::Load(cursor, u);
  }
  AwaitPrevious();
  // Chunks beyond the end are copied, too, and not used: behind the last row there is room.
  const uint8_t* const x0 =
      x.data + (row0 / kTileRows * x.chunks + begin) * static_cast<int64_t>(Inputs::kBytes);
  const int64_t of_tile = static_cast<int64_t>(x.chunks) * Inputs::kBytes;
  const auto stage = [&](int number) {
    if (begin + number * kPer < end) {
      uint8_t* const to = stages + number % kStages * kTiles * kTileStage;
#pragma unroll
      for (int i = 0; i < (kCopies + kThreads - 1) / kThreads; ++i) {
        const int at = (static_cast<int>(threadIdx.x) + i * kThreads) * 16;
        if (at >= kCopies * 16) break;
        __pipeline_memcpy_async(
            to + at, x0 + at / kTileStage * of_tile + number * kTileStage + at % kTileStage, 16);
      }
    }
    __pipeline_commit();
  };

  float totals[kTiles][4] = {}, sums[kTiles][4] = {};
  const auto end_part_here = [&] {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (shares && active) {
          const int64_t row = row0 + i * kTileRows + 2 * t + e % 2;
          __stcg(shared.At(m, part, tile, row) + g + e / 2 * 8, sums[i][e]);
        } else {
          totals[i][e] += sums[i][e];
        }
        sums[i][e] = 0;
      }
    }
    ++part;
  };

  for (int s = 0; s < kStages - 1; ++s) stage(s);
  int number = 0;
  for (int c0 = begin; c0 < end; c0 += kPer, ++number) {
    __pipeline_wait_prior(kStages - 2);
    // All copies of this stage are there, and all are done with the one to be overwritten.
    __syncthreads();
    stage(number + kStages - 1);
    const typename Inputs::Cursor at(stages + number % kStages * kTiles * kTileStage, lane);
#pragma unroll
    for (int u = 0; u < kPer; ++u) {
      const int chunk = c0 + u;
      if (chunk >= end || !active) break;
      while (chunk >= BeginOf(x.chunks, part + 1)) end_part_here();
      const typename F::Weights weights = F::Unpack(raw[u], lane);
      if (chunk + kPer < end) raw[u] = F::Load(cursor, kPer + u);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        Inputs inputs;
        inputs.Load(at, i * kTileStage + u * Inputs::kBytes);
        F::Add(weights, inputs, sums[i]);
      }
    }
    cursor.Advance(kPer);
  }
  while (part < end_part) end_part_here();
  if (!shares) {
    if (!active) return;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        Finish(piece, x, activation, row0 + i * kTileRows + 2 * t + e % 2,
               within * kTileOutputs + g + e / 2 * 8, totals[i][e]);
      }
    }
    return;
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    // Counts from 0 again after the last one.
    last = atomicInc(shared.arrivals + blockIdx.y * gridDim.x + blockIdx.x, gridDim.z - 1) ==
           gridDim.z - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  for (int i = threadIdx.x; i < kWarps * kRows * kTileOutputs; i += kThreads) {
    const int output = i % kTileOutputs, row = i / kTileOutputs % kRows;
    const int64_t of = tile0 + i / kTileOutputs / kRows;
    if (of >= m.tiles) break;
    float sum = 0;
#pragma unroll
    for (int p = 0; p < kParts; ++p) sum += __ldcg(shared.At(m, p, of, row0 + row) + output);
    const Piece& here = PieceOf(m, of);
    Finish(here, x, activation, row0 + row, (of - here.first_tile) * kTileOutputs + output, sum);
  }
}

}  // namespace row_products
}  // namespace espalier
