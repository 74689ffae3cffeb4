// Holds the operands of paged_attention_kernel.cuh: tensors, partial results, and a block's shared
// memory with the queries in it, split for tensor cores.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/cuda/attention/kv_fragments.cuh"
#include "ops/cuda/attention/query_tile.cuh"
#include "ops/cuda/math/numeric.cuh"

namespace espalier {
namespace cuda_paged_attention {

constexpr int kWarps = 4;
constexpr int kBlock = kWarps * 32;  // threads
constexpr int kKvTileKeys = 64;      // keys of a warp's tile
constexpr int kGroup = kWarps * kKvTileKeys;
constexpr int kMaxDim = 256;
constexpr int kChunk = 32;         // elements of a head; a lane holds eight consecutive ones
constexpr int kMmaKeys = 8;        // keys of an mma with queries (n)
constexpr int kMmaValueKeys = 16;  // keys of an mma with values (k)
constexpr int kQueryPlanes = 3;    // bf16 planes of queries and of softmax weights

// Scales of an int8 cache, one per slot and head; null if the cache has none.
struct CacheScales {
  const float* k;
  const float* v;
};

// Split-KV partial results, merged by the last block of a tile: [rows * heads][groups][dim + 2].
struct Partials {
  float* data;
  int64_t groups;
  uint32_t* arrivals;  // counters per block of the grid's x; zeros between launches

  __device__ float* At(int64_t row_head, int64_t group, int dim) const {
    return data + (row_head * groups + group) * (dim + 2);
  }
};

template <typename T, typename C>
struct Attention {
  const T* q;
  const C* k_cache;
  const C* v_cache;
  CacheScales scales;
  T* y;
  Partials partials;
  Batch batch;
  QueryTile::Heads heads;
  int kv_heads, dim;
  ScoreMod score_mod;
};

// Layout of the shared memory of a block, in bytes.
template <int kDim>
struct SharedMemoryLayout {
  static constexpr int kQuery = kDim / kChunk * 2 * kQueryPlanes * 512;
  // Of a warp, one after the other in the same memory: dot products with ancestors and, for int8,
  // the scales of their values; softmax weights; results, in rows padded against bank conflicts.
  static constexpr int kStride = kDim + 8;
  static constexpr int kAncestors = QueryTile::kQueries * kKvTileKeys * 4;
  static constexpr int kWeights = kKvTileKeys / kMmaValueKeys * kQueryPlanes * 512;
  static constexpr int kResults = QueryTile::kQueries * kStride * 4;
  static constexpr int kOfWarp = kResults > 2 * kAncestors ? kResults : 2 * kAncestors;
  static constexpr int kAll = kQuery + kWarps * kOfWarp;
  static_assert(kWeights <= kOfWarp);
};

// Returns e^(score - top); 0 where the score is minus infinity.
__device__ __forceinline__ float Weight(float score, float top) {
  return FastExp2((score - (top == -INFINITY ? 0.0f : top)) * 1.4426950408889634f);
}

// Writes the A fragments of a tile's queries to shared memory: [chunks][2 halves][planes] of
// mma.m16n8k16 operands. With groupID g = lane / 4 and threadID_in_group t = lane % 4 (PTX ISA,
// "Matrix fragments for mma.m16n8k16"), a lane holds queries g and g + 8, elements 8 t to 8 t + 7
// of a chunk, four per half. PTX assigns other k indices to these registers; keys use the same
// order.
template <typename T, typename C, int kDim>
__device__ __forceinline__ void SplitQueries(const Attention<T, C>& a, const QueryTile& tile,
                                             uint4* queries) {
  const int lane = threadIdx.x % 32;
  const T* from[2];
#pragma unroll
  for (int high = 0; high < 2; ++high) {
    const QueryTile::Query query = tile.At(lane / 4 + 8 * high);
    from[high] =
        query.there ? a.q + ((tile.row + query.row) * a.heads.all + query.head) * a.dim : nullptr;
  }
#pragma unroll 1
  for (int i = threadIdx.x / 32; i < kDim / kChunk * 2; i += kWarps) {
    const int at = i / 2 * kChunk + lane % 4 * 8 + i % 2 * 4;
    uint32_t numbers[2][4];
#pragma unroll
    for (int high = 0; high < 2; ++high) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        numbers[high][e] = from[high] != nullptr && at + e < a.dim
                               ? __float_as_uint(ToFloat(from[high][at + e]))
                               : 0u;
      }
    }
#pragma unroll
    for (int p = 0; p < kQueryPlanes; ++p) {
      queries[(i * kQueryPlanes + p) * 32 + lane] =
          make_uint4(TruncatePairToBf16(numbers[0][0], numbers[0][1]),
                     TruncatePairToBf16(numbers[1][0], numbers[1][1]),
                     TruncatePairToBf16(numbers[0][2], numbers[0][3]),
                     TruncatePairToBf16(numbers[1][2], numbers[1][3]));
#pragma unroll
      for (int high = 0; high < 2; ++high) {
#pragma unroll
        for (int e = 0; e < 4; ++e) numbers[high][e] = FiniteBf16Remainder(numbers[high][e]);
      }
    }
  }
}

}  // namespace cuda_paged_attention
}  // namespace espalier
