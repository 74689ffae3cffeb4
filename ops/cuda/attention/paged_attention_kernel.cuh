// Batch-invariant attention over the paged KV cache on tensor cores. Key number j of a row's list
// (prefix, then ancestors) always has the same position in the same sums, so a result does not
// depend on the batch, on the slots, or on whether a key is of the sequence or an ancestor in a
// token tree.
//
// A warp computes 16 queries over a tile of 64 keys (KvTile) with its own softmax; four warps cover
// a group of four tiles. Tiles, then groups, are merged in order by online softmax (Milakov and
// Gimelshein, "Online normalizer calculation for softmax", 2018). One block goes through all
// groups, or, where blocks are too few, several share them and the last one merges (split-KV: Dao
// et al., "Flash-Decoding", 2023).
//
// f32 and f16 operands are split into bf16 numbers (gemm/bf16x3_split.cuh), so results have f32
// precision. An int8 cache is multiplied as integers; its scales are applied to the products.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/cuda/attention/attention_operands.cuh"
#include "ops/cuda/attention/kv_tile.cuh"
#include "ops/cuda/attention/query_tile.cuh"
#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/runtime/ptx.cuh"

namespace espalier {
namespace cuda_paged_attention {

// Online softmax over the keys seen so far, with kValues elements of the weighted sum of values.
template <int kValues>
struct OnlineSoftmax {
  float most = -INFINITY, sum = 0;
  float values[kValues] = {};

  // The only merge operation: it fixes the rounding. Does not call `value(i)` if there are no keys.
  template <typename Value>
  __device__ __forceinline__ void Add(float tile_max, float tile_sum, const Value& value) {
    if (tile_max == -INFINITY && tile_sum == 0) return;
    const float next = fmaxf(most, tile_max);
    const float before = Weight(most, next), now = Weight(tile_max, next);
    most = next;
    sum = fmaf(sum, before, __fmul_rn(tile_sum, now));
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      values[i] = fmaf(values[i], before, __fmul_rn(value(i), now));
    }
  }
};

// Blocks per multiprocessor, limited by registers.
constexpr int BlocksPerMultiprocessor(int dim) { return dim <= 64 ? 3 : dim <= 128 ? 2 : 1; }

// A block takes the queries of one tile and every gridDim.y-th group of keys. kDim >= dim of a
// head.
template <typename T, typename C, int kDim, bool kWhole>
__global__ void __launch_bounds__(kBlock, BlocksPerMultiprocessor(kDim))
    PagedAttentionKernel(Attention<T, C> a) {
  constexpr int kValues =
      kDim / (kBlock / QueryTile::kQueries);  // of a query, that a thread merges
  constexpr int kEvery = kDim / kValues;
  uint4* const shared = DynamicSharedMemory();
  __shared__ Keys keys[QueryTile::kQueries];
  __shared__ float most[kWarps][QueryTile::kQueries], sum[kWarps][QueryTile::kQueries];
  __shared__ bool last;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, dim = a.dim;
  LaunchDependentGrids();
  // No kernel writes the tables, so they may be read before WaitOnDependentGrids.
  const QueryTile tile = QueryTile::Of(a.batch, a.heads, blockIdx.x);
  if (tile.rows == 0) return;
  if (thread < tile.rows) {
    keys[thread] = Keys::Of(a.batch, tile.row + thread, a.score_mod.window);
  }
  __syncthreads();
  const QueryTileKeys all = QueryTileKeys::Of(keys, tile.rows);
  const int first_group = all.begin / kGroup, end_group = (all.end + kGroup - 1) / kGroup;
  // Blocks that have a group; a single one needs no partial results.
  const int parts = min(static_cast<int>(gridDim.y), max(end_group - first_group, 1));
  const int part = static_cast<int>(blockIdx.y);
  if (part >= parts) return;
  const bool alone = parts == 1;

  uint8_t* const memory = reinterpret_cast<uint8_t*>(shared) + SharedMemoryLayout<kDim>::kQuery;
  KvTile<T, C, kDim, kWhole> kv_tile(a, tile, keys, all, shared,
                                     memory + warp * SharedMemoryLayout<kDim>::kOfWarp);
  const auto find = [&](int group) { kv_tile.Find(group * kGroup + warp * kKvTileKeys); };
  find(first_group + part);
  WaitOnDependentGrids();
  SplitQueries<T, C, kDim>(a, tile, shared);
  __syncthreads();
  const int query = thread / kEvery, element = thread % kEvery;
  const QueryTile::Query own = tile.At(query);
  const bool there = own.there;
  const int64_t row_head = (tile.row + own.row) * a.heads.all + own.head;
  OnlineSoftmax<kValues> merged;
  for (int group = first_group + part; group < end_group; group += parts) {
    if (kv_tile.Any()) {
      kv_tile.Run(most[warp], sum[warp]);
    } else if (thread % 32 < QueryTile::kQueries) {
      most[warp][thread % 32] = -INFINITY;
      sum[warp][thread % 32] = 0;
    }
    find(group + parts);
    __syncthreads();
    OnlineSoftmax<kValues> of_group;
#pragma unroll 1
    for (int w = 0; w < kWarps; ++w) {
      const float* const results =
          reinterpret_cast<const float*>(memory + w * SharedMemoryLayout<kDim>::kOfWarp) +
          query * SharedMemoryLayout<kDim>::kStride + element;
      of_group.Add(most[w][query], sum[w][query], [&](int i) { return results[i * kEvery]; });
    }
    if (alone) {
      merged.Add(of_group.most, of_group.sum, [&](int i) { return of_group.values[i]; });
    } else if (there) {
      float* const to = a.partials.At(row_head, group, dim);
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        if (element + i * kEvery < dim) to[2 + element + i * kEvery] = of_group.values[i];
      }
      if (element == 0) {
        to[0] = of_group.most;
        to[1] = of_group.sum;
      }
    }
    __syncthreads();  // the next group overwrites this memory
  }

  if (!alone) {
    __threadfence();
    __syncthreads();
    // atomicInc wraps to 0 after the last block.
    if (thread == 0) {
      const auto others = static_cast<uint32_t>(parts - 1);
      last = atomicInc(a.partials.arrivals + blockIdx.x, others) == others;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    // Merges the groups: reads their softmaxes first, then the values of several groups at once.
    float2* const softmaxes = reinterpret_cast<float2*>(memory);
    constexpr int kStaged = 32, kAtOnce = kValues <= 16 ? 4 : 2;
    for (int begin = first_group; begin < end_group; begin += kStaged) {
      const int count = min(kStaged, end_group - begin);
      __syncthreads();
      for (int g = element; there && g < count; g += kEvery) {
        const float* const from = a.partials.At(row_head, begin + g, dim);
        softmaxes[query * kStaged + g] = make_float2(__ldcg(from), __ldcg(from + 1));
      }
      __syncthreads();
      for (int g0 = 0; there && g0 < count; g0 += kAtOnce) {
        float values[kAtOnce][kValues];
#pragma unroll
        for (int g = 0; g < kAtOnce; ++g) {
          const float* const from =
              a.partials.At(row_head, begin + min(g0 + g, count - 1), dim) + 2 + element;
#pragma unroll
          for (int i = 0; i < kValues; ++i) {
            values[g][i] = element + i * kEvery < dim ? __ldcg(from + i * kEvery) : 0.0f;
          }
        }
#pragma unroll
        for (int g = 0; g < kAtOnce; ++g) {
          if (g0 + g >= count) break;
          const float2 softmax = softmaxes[query * kStaged + g0 + g];
          merged.Add(softmax.x, softmax.y, [&](int i) { return values[g][i]; });
        }
      }
    }
  }
  if (!there) return;
  T* const to = a.y + row_head * dim;
  const bool any = keys[own.row].size > 0;
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    if (element + i * kEvery < dim) {
      to[element + i * kEvery] = FromFloat<T>(any ? merged.values[i] / merged.sum : 0.0f);
    }
  }
}

}  // namespace cuda_paged_attention
}  // namespace espalier
