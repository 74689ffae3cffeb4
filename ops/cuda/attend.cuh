// Attention over the paged KV cache: key number j of a row's list (prefix, then ancestors) always
// falls to the same place of the same sums. So the bits do not depend on the batch, on the slots,
// or on whether a key comes through the sequence or as an ancestor in a tree.
//
// Keys come in pieces of 256. A piece has its own softmax, and pieces are merged in order (Milakov
// and Gimelshein 2018), by one block that went through all of them, or, where there are too few
// blocks, by the last one of several that each went through some (Dao et al., "Flash-Decoding",
// 2023).
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "ops/cuda/fault.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/numeric.cuh"
#include "ops/cuda/reduce.cuh"

namespace espalier {
namespace cuda_paged_attention {

constexpr int kBlock = 256;      // threads
constexpr int64_t kPiece = 256;  // keys
constexpr int kMostDim = 256;
constexpr int kMostElements = 512;  // of the results of a block: heads by dimensions
constexpr int kEach = kMostElements / kBlock;

// What happens to scaled products.
struct Scores {
  float scale, softcap;  // softcap 0: none
  const float* slopes;   // null: no ALiBi
  bool alibi_bf16;
  int64_t window;  // 0: all keys

  // With key number j of `size`, before which `first` lie outside the window.
  __device__ float Of(float dot, int head, int64_t j, int64_t size, int64_t first) const {
    float score = dot * scale;
    if (softcap > 0) score = softcap * tanhf(score / softcap);
    if (slopes == nullptr) return score;
    const float slope = slopes[head];
    if (!alibi_bf16) return score + slope * static_cast<float>(j - (size - 1));
    const auto round = [](float x) { return __bfloat162float(__float2bfloat16_rn(x)); };
    return score + round(round(slope) * round(static_cast<float>(first + j))) * scale;
  }
};

// The batch's tables and their sizes.
struct Batch {
  const int32_t* slots;
  const int32_t* row_sequence;
  const int32_t* row_prefix;
  const int32_t* ancestor_start;
  const int32_t* ancestor_slots;
  const int32_t* sequence_start;
  const int32_t* sequence_slots;
  int64_t rows, cache_slots, sequences, ancestors, context;
  FaultSink faults;
};

// The keys that one row sees; none after a fault in the tables.
struct Keys {
  const int32_t* prefix;
  const int32_t* ancestors;
  int64_t prefix_size, size;
  int64_t first;  // position of key 0: how many lie before the window

  __device__ void KeepWindow(int64_t window) {
    if (window <= 0 || size <= window) return;
    first = size - window;
    const int64_t of_prefix = first < prefix_size ? first : prefix_size;
    prefix += of_prefix;
    prefix_size -= of_prefix;
    ancestors += first - of_prefix;
    size = window;
  }

  __device__ static Keys Of(const Batch& b, int64_t row) {
    const Keys none{nullptr, nullptr, 0, 0, 0};
    const int64_t sequence = b.row_sequence[row];
    if (sequence < 0 || sequence >= b.sequences) {
      b.faults.Report(FaultKind::kSequence, row, sequence, b.sequences);
      return none;
    }
    const int64_t start = b.sequence_start[sequence], end = b.sequence_start[sequence + 1];
    const int64_t prefix = b.row_prefix[row];
    if (start < 0 || end < start || end > b.context || prefix < 0 || prefix > end - start) {
      b.faults.Report(FaultKind::kSequence, row, prefix, end - start);
      return none;
    }
    const int64_t first = b.ancestor_start[row], last = b.ancestor_start[row + 1];
    if (first < 0 || last < first || last > b.ancestors) {
      b.faults.Report(FaultKind::kSequence, row, last, b.ancestors);
      return none;
    }
    return {b.sequence_slots + start, b.ancestor_slots + first, prefix, prefix + last - first, 0};
  }

  __device__ int64_t Slot(const Batch& b, int64_t row, int64_t j) const {
    const int64_t slot = j < prefix_size ? prefix[j] : ancestors[j - prefix_size];
    if (slot >= 0 && slot < b.cache_slots) return slot;
    b.faults.Report(FaultKind::kCacheSlot, row, slot, b.cache_slots);
    return 0;
  }
};

template <typename C>
__device__ __forceinline__ float Wide(C x) {
  if constexpr (std::is_same_v<C, int8_t>) {
    return static_cast<float>(x);
  } else {
    return ToFloat(x);
  }
}

// What the numbers of a slot's head are multiplied by, if the cache has scales; null: it has none.
struct CacheScales {
  const float* k;
  const float* v;
};

// Neighbouring elements of a head, as they lie in memory.
template <typename C, int kPerLane>
struct Elements {
  static constexpr int kBytes = sizeof(C) * kPerLane < 16 ? sizeof(C) * kPerLane : 16;
  struct alignas(kBytes) {
    C value[kPerLane];
  } all;

  // `whole`: all of them are there and aligned.
  __device__ __forceinline__ void Load(const C* head, int at, int dim, bool whole) {
    if (whole) {
      all = *reinterpret_cast<const decltype(all)*>(head + at);
      return;
    }
#pragma unroll
    for (int e = 0; e < kPerLane; ++e) all.value[e] = at + e < dim ? head[at + e] : C{};
  }
  __device__ __forceinline__ float operator[](int e) const { return Wide(all.value[e]); }
};

// The softmax over the keys seen so far, and one element of their weighted sum.
struct Merged {
  float most = -INFINITY, sum = 0, value = 0;

  // Every kernel merges by these operations and no others.
  __device__ __forceinline__ void Add(float piece_most, float piece_sum, float piece_value) {
    const float next = fmaxf(most, piece_most);
    const float before = Weight(most, next), now = Weight(piece_most, next);
    most = next;
    sum = fmaf(sum, before, __fmul_rn(piece_sum, now));
    value = fmaf(value, before, __fmul_rn(piece_value, now));
  }
  __device__ __forceinline__ float Result() const { return value / sum; }

 private:
  __device__ static __forceinline__ float Weight(float score, float top) {
    return score == -INFINITY ? 0.0f : expf(score - top);
  }
};

// Where blocks leave their pieces for the last of them: [rows * heads][pieces][dim + 2].
struct Partials {
  float* data;
  int64_t pieces;
  uint32_t* arrivals;  // zeros, by block of the grid's x

  __device__ float* At(int64_t row_head, int64_t piece, int dim) const {
    return data + (row_head * pieces + piece) * (dim + 2);
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
  int heads, kv_heads, dim;
  bool whole;  // see Elements
  Scores how;
};

// A block has kHeads neighbouring heads of a row that share their keys, and of the pieces every
// gridDim.y-th. kLanes lanes have kPerLane elements of a key, or of a value, each.
template <typename T, typename C, int kLanes, int kPerLane, int kHeads>
__global__ void __launch_bounds__(kBlock, 2) AttendKernel(Attention<T, C> a) {
  constexpr int kGroups = kBlock / kLanes;
  // Keys, and values, that a group of lanes has on the way at once: two or four registers each.
  constexpr int kAtOnce = sizeof(C) * kPerLane > 16 ? 4 : 8;
  using Part = Elements<C, kPerLane>;
  __shared__ int32_t slots[kPiece];
  __shared__ float weights[kHeads][kPiece];
  __shared__ float most[kHeads], sum[kHeads];
  __shared__ float values[kGroups][kHeads * kLanes * kPerLane];
  __shared__ bool last;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int group = threadIdx.x / kLanes, at = threadIdx.x % kLanes * kPerLane;
  const int blocks_of_row = a.heads / kHeads, dim = a.dim;
  const int64_t row = blockIdx.x / blocks_of_row;
  const int head0 = static_cast<int>(blockIdx.x % blocks_of_row) * kHeads;
  const int kv = head0 / (a.heads / a.kv_heads);
  const int64_t width = static_cast<int64_t>(a.kv_heads) * dim;
  LaunchNext();
  // The tables are no kernel's: they were there before the first.
  Keys keys = Keys::Of(a.batch, row);
  keys.KeepWindow(a.how.window);
  AwaitPrevious();
  const int64_t pieces = (keys.size + kPiece - 1) / kPiece;
  // One piece needs no merging.
  const bool alone = gridDim.y == 1 || pieces <= 1;
  if (pieces <= 1 && blockIdx.y > 0) return;

  float query[kHeads][kPerLane];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    Elements<T, kPerLane> given;
    given.Load(a.q + (row * a.heads + head0 + h) * dim, at, dim, false);
#pragma unroll
    for (int e = 0; e < kPerLane; ++e) query[h][e] = given[e];
  }
  const int elements = kHeads * dim;  // of which a thread has every kBlock-th
  Merged merged[kEach];
  for (int64_t piece = blockIdx.y; piece < pieces; piece += gridDim.y) {
    const int64_t first = piece * kPiece;
    const int count = static_cast<int>(min(kPiece, keys.size - first));
    __syncthreads();  // the piece before is done with
    for (int j = threadIdx.x; j < count; j += kBlock) {
      slots[j] = static_cast<int32_t>(keys.Slot(a.batch, row, first + j));
    }
    __syncthreads();
    // Beyond the last key that one is read again.
    Part parts[kAtOnce];
    const auto load = [&](const C* cache, int j0) {
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int j = min(j0 + u * kGroups + group, count - 1);
        parts[u].Load(cache + slots[j] * width + kv * dim, at, dim, a.whole);
      }
    };
    for (int j0 = 0; j0 < count; j0 += kAtOnce * kGroups) {
      load(a.k_cache, j0);
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          float dot = 0;
#pragma unroll
          for (int e = 0; e < kPerLane; ++e) dot = fmaf(query[h][e], parts[u][e], dot);
#pragma unroll
          for (int offset = kLanes / 2; offset > 0; offset /= 2) {
            dot += __shfl_xor_sync(0xffffffffu, dot, offset);
          }
          if (at == 0) weights[h][min(j0 + u * kGroups + group, count - 1)] = dot;
        }
      }
    }
    load(a.v_cache, 0);  // while the softmax is taken
    __syncthreads();
    for (int h = warp; h < kHeads; h += kBlock / 32) {
      float scores[kPiece / 32];
      float top = -INFINITY;
#pragma unroll
      for (int i = 0; i < kPiece / 32; ++i) {
        const int j = lane + 32 * i;
        scores[i] = -INFINITY;
        if (j >= count) continue;
        float dot = weights[h][j];
        if constexpr (std::is_same_v<C, int8_t>) {
          dot *= a.scales.k[static_cast<int64_t>(slots[j]) * a.kv_heads + kv];
        }
        scores[i] = a.how.Of(dot, head0 + h, first + j, keys.size, keys.first);
        top = fmaxf(top, scores[i]);
      }
      top = WarpReduce<MaxOp>(top);
      float total = 0;
#pragma unroll
      for (int i = 0; i < kPiece / 32; ++i) {
        const int j = lane + 32 * i;
        if (j >= count) continue;
        float weight = scores[i] == -INFINITY ? 0.0f : expf(scores[i] - top);
        total += weight;
        if constexpr (std::is_same_v<C, int8_t>) {
          weight *= a.scales.v[static_cast<int64_t>(slots[j]) * a.kv_heads + kv];
        }
        weights[h][j] = weight;
      }
      total = WarpReduce<SumOp>(total);
      if (lane == 0) {
        most[h] = top;
        sum[h] = total;
      }
    }
    __syncthreads();
    float sums[kHeads][kPerLane] = {};
    for (int j0 = 0; j0 < count; j0 += kAtOnce * kGroups) {
      if (j0 > 0) load(a.v_cache, j0);
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int j = j0 + u * kGroups + group;
        if (j >= count) continue;
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          const float weight = weights[h][j];
#pragma unroll
          for (int e = 0; e < kPerLane; ++e) sums[h][e] = fmaf(weight, parts[u][e], sums[h][e]);
        }
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int e = 0; e < kPerLane; ++e) {
        if (at + e < dim) values[group][h * dim + at + e] = sums[h][e];
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int e = threadIdx.x + i * kBlock;
      if (e >= elements) break;
      float value = 0;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) value += values[g][e];
      const int h = e / dim;
      if (alone) {
        merged[i].Add(most[h], sum[h], value);
        continue;
      }
      float* const to = a.partials.At(row * a.heads + head0 + h, piece, dim);
      to[2 + e % dim] = value;
      if (e % dim == 0) {
        to[0] = most[h];
        to[1] = sum[h];
      }
    }
  }

  if (!alone) {
    __threadfence();
    __syncthreads();
    // Counts from 0 again after the last one.
    if (threadIdx.x == 0) {
      last = atomicInc(a.partials.arrivals + blockIdx.x, gridDim.y - 1) == gridDim.y - 1;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int e = threadIdx.x + i * kBlock;
      if (e >= elements) break;
#pragma unroll 4
      for (int64_t piece = 0; piece < pieces; ++piece) {
        const float* const from = a.partials.At(row * a.heads + head0 + e / dim, piece, dim);
        merged[i].Add(__ldcg(from), __ldcg(from + 1), __ldcg(from + 2 + e % dim));
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = threadIdx.x + i * kBlock;
    if (e >= elements) break;
    a.y[(row * a.heads + head0) * dim + e] =
        FromFloat<T>(keys.size > 0 ? merged[i].Result() : 0.0f);
  }
}

}  // namespace cuda_paged_attention
}  // namespace espalier
