// A warp's part of paged_attention_kernel.cuh: softmax attention of 16 queries over a tile of 64
// keys on tensor cores.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "ops/cuda/attention/attention_operands.cuh"
#include "ops/cuda/attention/kv_fragments.cuh"
#include "ops/cuda/attention/query_tile.cuh"
#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/runtime/ptx.cuh"

namespace espalier {
namespace cuda_paged_attention {

// A warp's tile of keys and values. The code is kept small: a step of one row runs it once, and
// stalls on every miss of the instruction cache.
template <typename T, typename C, int kDim, bool kWhole>
class KvTile {
 public:
  __device__ __forceinline__ KvTile(const Attention<T, C>& a, const QueryTile& tile,
                                    const Keys* keys, const QueryTileKeys& all,
                                    const uint4* queries, uint8_t* memory)
      : a_(a),
        tile_(tile),
        keys_(keys),
        all_(all),
        queries_(queries),
        memory_(memory),
        lane_(threadIdx.x % 32),
        g_(lane_ / 4),
        t_(lane_ % 4),
        width_(static_cast<int64_t>(a.kv_heads) * a.dim),
        k_(a.k_cache + tile.kv_head * a.dim),
        v_(a.v_cache + tile.kv_head * a.dim),
        own_{tile.At(g_), tile.At(g_ + 8)} {}

  // Selects the keys from `first` on; to be called before Run. Prefetches keys and values of the
  // sequence into L2, even while another kernel writes some of them: its writes go to L2, too.
  __device__ __forceinline__ void Find(int first) {
    first_ = first;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      slots_[i] = 0;
      if (!Any() || first_ >= all_.prefix) continue;
      // A lane takes two keys, 32 apart, clamped to the last.
      const int j = min(first_ + lane_ + 32 * i, all_.prefix - 1);
      slots_[i] = a_.batch.Checked(tile_.row, all_.sequence[j]);
#pragma unroll 1
      for (int at = 0; at < a_.dim; at += 128 / static_cast<int>(sizeof(C))) {
        PrefetchToL2(k_ + slots_[i] * width_ + at);
        PrefetchToL2(v_ + slots_[i] * width_ + at);
      }
    }
  }
  // Whether any row sees any key of the tile.
  __device__ __forceinline__ bool Any() const {
    return first_ < all_.end && first_ + kKvTileKeys > all_.begin;
  }

  // Computes the tile's softmax: writes each query's maximum to most[kQueries], its sum of weights
  // to sum[kQueries], and its weighted sum of values to the warp's shared memory,
  // [kQueries][kStride].
  __device__ __forceinline__ void Run(float* most, float* sum) const {
    float scores[kTiles][4] = {};
    if (first_ < all_.prefix) {
      int slots[kTiles];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) slots[n] = SlotInSequence(n * kMmaKeys + g_);
      Dots(slots, scores);
    }
    DotsWithAncestors();
    __syncwarp();
    Score(scores);
    Softmax(scores, most, sum);
    float values[kDim / 64][8][4] = {};
    AddValues(values);
    __syncwarp();
    float* const results = reinterpret_cast<float*>(memory_);
#pragma unroll
    for (int d = 0; d < kDim / 64; ++d) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float* const to = results + (g_ + i / 2 * 8) * SharedMemoryLayout<kDim>::kStride + 64 * d +
                          16 * t_ + i % 2 * 8;
#pragma unroll
        for (int e = 0; e < 8; e += 4) {
          *reinterpret_cast<float4*>(to + e) = make_float4(
              values[d][e][i], values[d][e + 1][i], values[d][e + 2][i], values[d][e + 3][i]);
        }
      }
    }
  }

 private:
  static constexpr int kTiles = kKvTileKeys / kMmaKeys;
  static constexpr bool kScaled = std::is_same_v<C, int8_t>;
  static constexpr int kPlanes = KvVector8<C>::kPlanes;
  using Products = SplitProducts<kPlanes>;

  // Slot of key `key` of the tile. All lanes must pass keys of the same half of the tile.
  __device__ __forceinline__ int SlotInSequence(int key) const {
    return __shfl_sync(0xffffffffu, key < 32 ? slots_[0] : slots_[1], key % 32);
  }

  // Adds the dot products of the queries with kCount times eight keys; slots[n] is the slot of the
  // lane's key g of the n-th eight.
  template <int kCount>
  __device__ __forceinline__ void Dots(const int (&slots)[kCount], float (&dots)[kCount][4]) const {
#pragma unroll 1
    for (int chunk = 0; chunk * kChunk < a_.dim; ++chunk) {
      KvVector8<C> keys[kCount];
#pragma unroll
      for (int n = 0; n < kCount; ++n) {
        keys[n].template Load<kWhole>(k_ + slots[n] * width_, chunk * kChunk + 8 * t_, a_.dim);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t x[kQueryPlanes][4];
#pragma unroll
        for (int p = 0; p < kQueryPlanes; ++p) {
          Fragment(queries_[((2 * chunk + half) * kQueryPlanes + p) * 32 + lane_], x[p]);
        }
        // Interleaves the mma of several keys: those of one key depend on each other.
        constexpr int kTurns = kCount < 4 ? kCount : 4;
#pragma unroll
        for (int n0 = 0; n0 < kCount; n0 += kTurns) {
          uint32_t low[kTurns][kPlanes], high[kTurns][kPlanes];
#pragma unroll
          for (int n = 0; n < kTurns; ++n) {
            keys[n0 + n].Pair(2 * half, low[n]);
            keys[n0 + n].Pair(2 * half + 1, high[n]);
          }
#pragma unroll
          for (int p = 0; p < Products::kCount; ++p) {
            const auto planes = Products::Of(p);
#pragma unroll
            for (int n = 0; n < kTurns; ++n) {
              MmaM16N8K16Bf16(x[planes.wide], low[n][planes.narrow], high[n][planes.narrow],
                              dots[n0 + n]);
            }
          }
        }
      }
    }
    if constexpr (kScaled) {
#pragma unroll
      for (int n = 0; n < kCount; ++n) {
        float scales[2];
        ScalesOf(a_.scales.k, slots[n], scales);
#pragma unroll
        for (int i = 0; i < 4; ++i) dots[n][i] *= scales[i % 2];
      }
    }
  }

  // Scales of keys 2 t and 2 t + 1 of eight, where `slot` is the slot of the lane's key g.
  __device__ __forceinline__ void ScalesOf(const float* scales, int slot, float (&to)[2]) const {
    const float own = scales[static_cast<int64_t>(slot) * a_.kv_heads + tile_.kv_head];
#pragma unroll
    for (int i = 0; i < 2; ++i) to[i] = __shfl_sync(0xffffffffu, own, 4 * (2 * t_ + i));
  }

  __device__ static __forceinline__ void Fragment(const uint4& from, uint32_t (&to)[4]) {
    to[0] = from.x;
    to[1] = from.y;
    to[2] = from.z;
    to[3] = from.w;
  }

  // Dot products with ancestors, and the scales of their values, in the warp's shared memory.
  __device__ __forceinline__ float* AncestorDots(int query) const {
    return reinterpret_cast<float*>(memory_) + query * kKvTileKeys;
  }
  __device__ __forceinline__ float* AncestorScales(int query) const {
    return AncestorDots(query) + QueryTile::kQueries * kKvTileKeys;
  }

  // Each row has its own ancestors in the token tree: multiplies eight keys of a row's list with
  // all queries and keeps the products of that row.
  __device__ __forceinline__ void DotsWithAncestors() const {
    uint32_t rows =
        RowsWhere([&](const Keys& k) { return k.HasAncestors(first_, first_ + kKvTileKeys); });
#pragma unroll 1
    for (; rows != 0; rows &= rows - 1) {
      const int row = __ffs(static_cast<int>(rows)) - 1;
      const Keys& keys = keys_[row];
      const int end = min(keys.size, first_ + kKvTileKeys);
#pragma unroll 1
      for (int at = max(keys.prefix - first_, 0) / kMmaKeys * kMmaKeys; first_ + at < end;
           at += kMmaKeys) {
        const int slot[1] = {
            keys.Slot(a_.batch, tile_.row + row, min(first_ + at + g_, keys.size - 1))};
        float dots[1][4] = {};
        Dots(slot, dots);
        float scales[2] = {};
        if constexpr (kScaled) ScalesOf(a_.scales.v, slot[0], scales);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int query = g_ + i / 2 * 8, key = at + 2 * t_ + i % 2;
          if (own_[i / 2].row != row) continue;
          AncestorDots(query)[key] = dots[0][i];
          if constexpr (kScaled) AncestorScales(query)[key] = scales[i % 2];
        }
      }
    }
  }

  // Bit mask of the tile's rows for which `is` holds.
  template <typename Is>
  __device__ __forceinline__ uint32_t RowsWhere(const Is& is) const {
    return __ballot_sync(0xffffffffu, lane_ < tile_.rows && is(keys_[lane_]));
  }

  // Calls function(half, key, seen, in_sequence, score) for a lane's scores: whether the query sees
  // the key, and whether the key belongs to the sequence. Half 0 is query g, half 1 query g + 8.
  template <typename Function>
  __device__ __forceinline__ void Each(float (&scores)[kTiles][4], const Function& function) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Keys& keys = keys_[own_[half].there ? own_[half].row : 0];
      const int begin = own_[half].there ? keys.begin : INT32_MAX, prefix = keys.prefix,
                size = keys.size;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int key = n * kMmaKeys + 2 * t_ + i, j = first_ + key;
          function(half, key, j >= begin && j < size, j < prefix, scores[n][2 * half + i]);
        }
      }
    }
  }

  // Turns dot products into scores; minus infinity for keys that a query does not see.
  __device__ __forceinline__ void Score(float (&scores)[kTiles][4]) const {
    if (all_.ancestors) {
      Each(scores, [&](int half, int key, bool seen, bool in_sequence, float& score) {
        if (seen && !in_sequence) score = AncestorDots(g_ + 8 * half)[key];
      });
    }
    if (a_.score_mod.Plain()) {
      Each(scores, [&](int, int, bool seen, bool, float& score) {
        score = seen ? score * a_.score_mod.scale : -INFINITY;
      });
      return;
    }
    // Goes through shared memory, one score at a time, to keep the code small.
    const auto place = [&](int half, int key) -> float& {
      return AncestorDots(g_ + 8 * half)[key];
    };
    Each(scores, [&](int half, int key, bool, bool, float& score) { place(half, key) = score; });
#pragma unroll 1
    for (int i = 0; i < 4 * kTiles; ++i) {
      const int half = i / (2 * kTiles), key = i / 2 % kTiles * kMmaKeys + 2 * t_ + i % 2;
      const int j = first_ + key;
      const QueryTile::Query query = half == 0 ? own_[0] : own_[1];
      const Keys& keys = keys_[query.there ? query.row : 0];
      float& score = place(half, key);
      score = query.there && j >= keys.begin && j < keys.size
                  ? a_.score_mod.Of(score, query.head, j, keys.size)
                  : -INFINITY;
    }
    Each(scores, [&](int half, int key, bool, bool, float& score) { score = place(half, key); });
  }

  // Turns scores into softmax weights and leaves them in shared memory as split A fragments:
  // [4 times 16 keys][planes].
  __device__ __forceinline__ void Softmax(float (&scores)[kTiles][4], float* most,
                                          float* sum) const {
    float top[2], total[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      top[half] = -INFINITY;
      total[half] = 0;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        top[half] = fmaxf(top[half], fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
      }
#pragma unroll
      for (int lane = 1; lane <= 2; lane *= 2) {
        top[half] = fmaxf(top[half], __shfl_xor_sync(0xffffffffu, top[half], lane));
      }
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[n][i] = Weight(scores[n][i], top[half]);
          total[half] += scores[n][i];
        }
      }
#pragma unroll
      for (int lane = 1; lane <= 2; lane *= 2) {
        total[half] += __shfl_xor_sync(0xffffffffu, total[half], lane);
      }
      if (t_ == 0) {
        most[g_ + 8 * half] = top[half];
        sum[g_ + 8 * half] = total[half];
      }
    }
    if constexpr (kScaled) {
      float scales[kTiles][2];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        ScalesOf(a_.scales.v, SlotInSequence(n * kMmaKeys + g_), scales[n]);
      }
      Each(scores, [&](int half, int key, bool seen, bool in_sequence, float& score) {
        if (!seen) return;
        score *= in_sequence ? scales[key / kMmaKeys][key % 2] : AncestorScales(g_ + 8 * half)[key];
      });
    }
    __syncwarp();  // all lanes have read the memory that is overwritten
    uint4* const weights = reinterpret_cast<uint4*>(memory_) + lane_;
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
#pragma unroll
      for (int p = 0; p < kQueryPlanes; ++p) {
        uint32_t pairs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float* const pair = &scores[n + i / 2][i % 2 * 2];
          const uint32_t low = __float_as_uint(pair[0]), high = __float_as_uint(pair[1]);
          pairs[i] = TruncatePairToBf16(low, high);
          pair[0] = __uint_as_float(Bf16Remainder(low));
          pair[1] = __uint_as_float(Bf16Remainder(high));
        }
        weights[(n / 2 * kQueryPlanes + p) * 32] =
            make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
      }
    }
  }

  __device__ __forceinline__ void AddValues(float (&values)[kDim / 64][8][4]) const {
    const uint32_t all = (1u << tile_.rows) - 1;
#pragma unroll 1
    for (int at = 0; at < kKvTileKeys; at += kMmaValueKeys) {
      const int from = first_ + at, to = from + kMmaValueKeys;
      uint32_t rows = RowsWhere([&](const Keys& k) { return k.Sees(from, to); });
      if (rows == 0) continue;
      int slots[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) slots[i] = SlotInSequence(at + KeyOf(i));
      // A key that a row does not see has weight 0, which times an infinity or NaN would be NaN.
      const bool shared = RowsWhere([&](const Keys& k) { return k.HasAncestors(from, to); }) == 0 &&
                          (RowsWhere([&](const Keys& k) {
                             return k.SeesAllInSequence(from, min(to, all_.prefix));
                           }) == all ||
                           Finite(slots));
      if (shared) rows = 1;
#pragma unroll 1
      for (; rows != 0; rows &= rows - 1) {
        const int row = __ffs(static_cast<int>(rows)) - 1;
        if (!shared) {
          const Keys& keys = keys_[row];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            slots[i] = keys.Slot(a_.batch, tile_.row + row,
                                 max(keys.begin, min(from + KeyOf(i), keys.size - 1)));
          }
        }
        AddChunk(slots, at, shared || own_[0].row == row, shared || own_[1].row == row, values);
      }
    }
  }

  // The lane's i-th of four keys among 16.
  __device__ __forceinline__ int KeyOf(int i) const { return 2 * t_ + i % 2 + i / 2 * 8; }

  __device__ __forceinline__ bool Finite(const int (&slots)[4]) const {
    bool finite = true;
#pragma unroll 1
    for (int d = 8 * g_; d < a_.dim; d += 64) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        KvVector8<C> eight;
        eight.template Load<kWhole>(v_ + slots[i] * width_, d, a_.dim);
        finite = finite && eight.Finite();
      }
    }
    return __all_sync(0xffffffffu, finite);
  }

  // Adds the weighted values of the 16 keys from `at` on: for query g of the lane if `low`, and for
  // query g + 8 if `high`.
  __device__ __forceinline__ void AddChunk(const int (&slots)[4], int at, bool low, bool high,
                                           float (&values)[kDim / 64][8][4]) const {
    KvVector8<C> v[kDim / 64][4];
#pragma unroll
    for (int d = 0; d < kDim / 64; ++d) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        v[d][i].template Load<kWhole>(v_ + slots[i] * width_, 64 * d + 8 * g_, a_.dim);
      }
    }
    uint32_t weights[kQueryPlanes][4];
    const uint4* const from = reinterpret_cast<const uint4*>(memory_) + lane_;
#pragma unroll
    for (int p = 0; p < kQueryPlanes; ++p) {
      Fragment(from[(at / kMmaValueKeys * kQueryPlanes + p) * 32], weights[p]);
    }
    constexpr int kTurns = 4;  // mma interleaved, as in Dots
#pragma unroll
    for (int d = 0; d < kDim / 64; ++d) {
#pragma unroll
      for (int e0 = 0; e0 < 8; e0 += kTurns) {
        uint32_t first[kTurns][kPlanes], second[kTurns][kPlanes];
        float sums[kTurns][4];
#pragma unroll
        for (int e = 0; e < kTurns; ++e) {
          v[d][0].Pair(v[d][1], e0 + e, first[e]);
          v[d][2].Pair(v[d][3], e0 + e, second[e]);
#pragma unroll
          for (int i = 0; i < 4; ++i) sums[e][i] = values[d][e0 + e][i];
        }
#pragma unroll
        for (int p = 0; p < Products::kCount; ++p) {
          const auto planes = Products::Of(p);
#pragma unroll
          for (int e = 0; e < kTurns; ++e) {
            MmaM16N8K16Bf16(weights[planes.wide], first[e][planes.narrow], second[e][planes.narrow],
                            sums[e]);
          }
        }
#pragma unroll
        for (int e = 0; e < kTurns; ++e) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (i < 2 ? low : high) values[d][e0 + e][i] = sums[e][i];
          }
        }
      }
    }
  }

  const Attention<T, C>& a_;
  const QueryTile& tile_;
  const Keys* const keys_;
  const QueryTileKeys& all_;
  const uint4* const queries_;
  uint8_t* const memory_;
  const int lane_, g_, t_;
  const int64_t width_;
  const C* const k_;
  const C* const v_;
  const QueryTile::Query own_[2];
  int first_ = 0;
  int slots_[2] = {};
};

}  // namespace cuda_paged_attention
}  // namespace espalier
