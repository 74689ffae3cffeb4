// Batch-invariant softmax attention of a block of queries that share all keys but the last ones:
// each key and value is loaded and widened once for several queries. A query's sums do not depend
// on the other queries: key number j of its list has a fixed position in them, a product is
// DotTile's, and even and odd keys of the weighted sum of values are accumulated apart.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ops/cpu/attention/kv_cache_formats.h"
#include "ops/cpu/gemm/dot_tile.h"
#include "ops/cpu/simd/f32_math.h"

namespace espalier::attention_block {

using kv::LoadWide;
using kv::Wide;

constexpr int64_t kMaxQueries = 8;   // of a block
constexpr int64_t kKeysAtOnce = 32;  // keys that stay in L1 while all queries use them
constexpr int64_t kKeysAhead = 32;   // prefetch distance of keys, and of values

// The keys that one row sees.
struct Keys {
  const int32_t* prefix;
  int64_t prefix_size;
  const int32_t* ancestors;
  int64_t size;  // prefix and ancestors
  int64_t sequence;
  int64_t first = 0;  // position of key 0: number of keys before the sliding window

  ESPALIER_INLINE int64_t Slot(int64_t j) const {
    return j < prefix_size ? prefix[j] : ancestors[j - prefix_size];
  }
};

// A head of a row. REQUIRES: the row sees at least one key.
struct Query {
  const float* q;  // [dim]
  float* y;        // [dim]
  const Keys* keys;
  float slope;  // 0: no ALiBi
};

// Floats of scratch memory for the scores of a query that sees `keys` keys.
inline int64_t ScoresOf(int64_t keys) { return (keys + 15) / 16 * 16 + 16; }

// C: element type of the KV cache.
template <typename C>
struct Block {
  const Query* queries;
  int64_t count;     // 1 to kMaxQueries
  int64_t shared;    // leading keys that all queries share: an even number, or all
  const C* k_cache;  // the queries' head of slot 0
  const C* v_cache;
  const float* k_scale;  // the queries' head of slot 0; null: no scales
  const float* v_scale;
  int64_t width;  // elements from one slot to the next
  int64_t heads;  // scales from one slot to the next
  int64_t dim;
  float scale;
  float softcap;  // 0: none
  bool alibi_bf16;
  float* scores;       // [count, row]
  int64_t scores_row;  // ScoresOf(the most keys)
  float* sums;         // [count, 2, dim]
};

// Prefetches n elements into L2. Slots are scattered, so the hardware prefetcher does not help; L1
// has too few lines in flight for the latency of memory.
template <typename C>
ESPALIER_INLINE void PrefetchElements(const C* p, int64_t n) {
  const char* bytes = reinterpret_cast<const char*>(p);
  const int64_t size = n * static_cast<int64_t>(sizeof(C));
  for (int64_t at = 0; at < size; at += 64) __builtin_prefetch(bytes + at, 0, 2);
}

// Addresses and scales of up to kKeysAtOnce consecutive keys, or values, found once for all
// queries.
template <typename C>
struct KvTile {
  int64_t begin, size;
  const C* at[kKeysAtOnce + kKeysAhead];  // with those to prefetch; the last key is repeated
  float scale[kKeysAtOnce];

  // Finds as many of [first, last) as fit. `cache`, `scales`: as in Block.
  ESPALIER_INLINE void Find(const Block<C>& b, const Keys& keys, int64_t first, int64_t last,
                            const C* cache, const float* scales, float factor) {
    begin = first;
    size = std::min(kKeysAtOnce, last - first);
    int32_t mixed[kKeysAtOnce + kKeysAhead];
    const int32_t* slots = keys.prefix + first;
    if (first + kKeysAtOnce + kKeysAhead > keys.prefix_size) {
      for (int64_t i = 0; i < kKeysAtOnce + kKeysAhead; ++i) {
        mixed[i] = static_cast<int32_t>(keys.Slot(std::min(first + i, keys.size - 1)));
      }
      slots = mixed;
    }
    for (int64_t i = 0; i < kKeysAtOnce + kKeysAhead; ++i) at[i] = cache + slots[i] * b.width;
    for (float& one : scale) one = factor;
    if (scales != nullptr) {
      for (int64_t i = 0; i < kKeysAtOnce; ++i) scale[i] = factor * scales[slots[i] * b.heads];
    }
    for (int64_t i = size; i < kKeysAtOnce; ++i) scale[i] = 1;
  }
};

// Prefetches the first portion, which no earlier portion prefetched.
template <typename C>
ESPALIER_INLINE void FetchAll(const Block<C>& b, const KvTile<C>& p) {
  for (int64_t i = 0; i < p.size; ++i) PrefetchElements(p.at[i], b.dim);
}

// Multiplies the scores of the portion by its scales.
template <int W, typename C>
ESPALIER_INLINE void Scale(const KvTile<C>& p, float* scores) {
  using namespace simd;
  for (int64_t i = 0; i < p.size; i += W) {
    float* const at = scores + p.begin + i;
    Store<W>(at, Load<W>(at) * Load<W>(p.scale + i));
  }
}

// Computes dot products of queries `at` to `at` + R with a portion's keys. Overwrites up to W - 1
// scores behind them.
template <int W, int R, typename C>
ESPALIER_INLINE void Products(const Block<C>& b, const KvTile<C>& p, int64_t at) {
  using namespace simd;
  constexpr int K = W / R;
  const float* q[R];
  for (int r = 0; r < R; ++r) q[r] = b.queries[at + r].q;
  float* const scores = b.scores + at * b.scores_row + p.begin;
  for (int64_t j = 0; j < p.size; j += K) {
    // The first queries prefetch for the others.
    for (int c = 0; at == 0 && c < K; ++c) PrefetchElements(p.at[j + c + kKeysAhead], b.dim);
    float products[W];
    Store<W>(products, DotTile<W, R, K>(q, p.at + j, b.dim));
    for (int r = 0; r < R; ++r) {
      std::memcpy(scores + r * b.scores_row + j, products + r * K, K * sizeof(float));
    }
  }
}

// Adds the weighted values of a portion to vectors d to d + P of the sums of queries `at` to `at` +
// R. REQUIRES: the portion begins at an even key.
template <int W, int R, int P, typename C>
ESPALIER_INLINE void Weigh(const Block<C>& b, const KvTile<C>& p, int64_t at, int64_t d) {
  using namespace simd;
  const float* const scores = b.scores + at * b.scores_row + p.begin;
  float* const sums = b.sums + 2 * at * b.dim + d;
  Float<W> acc[R][2][P];
  for (int i = 0; i < 2 * R; ++i) {
    for (int v = 0; v < P; ++v) acc[i / 2][i % 2][v] = Load<W>(sums + i * b.dim + v * W);
  }
  int64_t j = 0;
  for (; j + 2 <= p.size; j += 2) {
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; ++odd) {
      if (at == 0) PrefetchElements(p.at[j + odd + kKeysAhead] + d, P * W);
      const C* const value = p.at[j + odd] + d;
      Float<W> wide[P];
#pragma GCC unroll 4
      for (int v = 0; v < P; ++v) wide[v] = LoadWide<W>(value + v * W);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const Float<W> weight = LoadSplat<W>(scores + r * b.scores_row + j + odd);
#pragma GCC unroll 4
        for (int v = 0; v < P; ++v) acc[r][odd][v] = weight * wide[v] + acc[r][odd][v];
      }
    }
  }
  if (j < p.size) {
    const C* const value = p.at[j] + d;
    for (int r = 0; r < R; ++r) {
      const Float<W> weight = LoadSplat<W>(scores + r * b.scores_row + j);
      for (int v = 0; v < P; ++v) {
        acc[r][0][v] = weight * LoadWide<W>(value + v * W) + acc[r][0][v];
      }
    }
  }
  for (int i = 0; i < 2 * R; ++i) {
    for (int v = 0; v < P; ++v) Store<W>(sums + i * b.dim + v * W, acc[i / 2][i % 2][v]);
  }
}

template <int W, int R, typename C>
ESPALIER_INLINE void WeighRows(const Block<C>& b, const KvTile<C>& p, int64_t at) {
  constexpr int P = R == 4 ? 2 : W == 16 || R == 1 ? 4 : 2;  // as many as the registers hold
  int64_t d = 0;
  for (; d + P * W <= b.dim; d += P * W) Weigh<W, R, P>(b, p, at, d);
  for (; d + W <= b.dim; d += W) Weigh<W, R, 1>(b, p, at, d);
}

// Calls Step::Run<R>(b, p, at) for all queries, R at a time: as many as the registers hold.
template <int W, typename Step, typename C>
ESPALIER_INLINE void ForQueries(const Block<C>& b, const KvTile<C>& p) {
  int64_t at = 0;
  if constexpr (W == 16) {
    for (; at + 4 <= b.count; at += 4) Step::template Run<W, 4>(b, p, at);
  }
  for (; at + 2 <= b.count; at += 2) Step::template Run<W, 2>(b, p, at);
  if (at < b.count) Step::template Run<W, 1>(b, p, at);
}

struct DotProductStep {
  template <int W, int R, typename C>
  static ESPALIER_INLINE void Run(const Block<C>& b, const KvTile<C>& p, int64_t at) {
    Products<W, R>(b, p, at);
  }
};

struct WeightedSumStep {
  template <int W, int R, typename C>
  static ESPALIER_INLINE void Run(const Block<C>& b, const KvTile<C>& p, int64_t at) {
    WeighRows<W, R>(b, p, at);
  }
};

ESPALIER_INLINE float RoundToBF16(float x) { return BF16ToF32(F32ToBF16(x)); }

// The ALiBi bias of the score with key j.
template <typename C>
ESPALIER_INLINE float Alibi(const Block<C>& b, const Query& query, int64_t j) {
  const Keys& keys = *query.keys;
  if (!b.alibi_bf16) return query.slope * static_cast<float>(j - (keys.size - 1));
  return RoundToBF16(RoundToBF16(query.slope) * RoundToBF16(static_cast<float>(keys.first + j))) *
         b.scale;
}

// Turns dot products into softmax weights.
template <int W, typename C>
ESPALIER_INLINE void Softmax(const Block<C>& b, const Query& query, float* scores) {
  using namespace simd;
  const Keys& keys = *query.keys;
  const int64_t n = keys.size;
  const float lowest = -__builtin_inff();
  for (int64_t j = n; j % W != 0; ++j) scores[j] = lowest;
  Float<W> top = Splat<W>(lowest);
  for (int64_t j = 0; j < n; j += W) {
    if (b.softcap > 0 || query.slope != 0) {
      for (int64_t i = j; i < std::min(j + W, n); ++i) {
        if (b.softcap > 0) scores[i] = b.softcap * FastTanh(scores[i] / b.softcap);
        if (query.slope != 0) scores[i] += Alibi(b, query, i);
      }
    }
    top = Max<W>(top, Load<W>(scores + j));
  }
  const float max = MaxLane<W>(top);
  Float<W> sum = {};
  for (int64_t j = 0; j < n; j += W) {
    const Float<W> e = Exp<W>(Load<W>(scores + j) - max);
    Store<W>(scores + j, e);
    sum += e;
  }
  const float inverse = 1.0f / Sum<W>(sum);
  for (int64_t j = 0; j < n; j += W) Store<W>(scores + j, Load<W>(scores + j) * inverse);
}

template <typename C, int W>
struct AttentionBlock {
  static ESPALIER_INLINE void Run(const Block<C>* block) {
    using namespace simd;
    const Block<C>& b = *block;
    KvTile<C> p;
    const Keys& of_all = *b.queries[0].keys;
    for (int64_t j = 0; j < b.shared; j += p.size) {
      p.Find(b, of_all, j, b.shared, b.k_cache, b.k_scale, b.scale);
      if (j == 0) FetchAll(b, p);
      ForQueries<W, DotProductStep>(b, p);
      for (int64_t i = 0; i < b.count; ++i) Scale<W>(p, b.scores + i * b.scores_row);
    }
    if (b.shared > 0) {
      p.Find(b, of_all, 0, b.shared, b.v_cache, b.v_scale, 1);
      FetchAll(b, p);
    }
    for (int64_t i = 0; i < b.count; ++i) {
      const Keys& keys = *b.queries[i].keys;
      float* const scores = b.scores + i * b.scores_row;
      for (int64_t j = b.shared; j < keys.size; j += p.size) {
        p.Find(b, keys, j, keys.size, b.k_cache, b.k_scale, b.scale);
        Products<W, 1>(b, p, i);
        Scale<W>(p, scores);
      }
      Softmax<W>(b, b.queries[i], scores);
    }
    std::memset(b.sums, 0, static_cast<size_t>(2 * b.count * b.dim) * sizeof(float));
    for (int64_t j = 0; j < b.shared; j += p.size) {
      p.Find(b, of_all, j, b.shared, b.v_cache, b.v_scale, 1);
      for (int64_t i = 0; b.v_scale != nullptr && i < b.count; ++i) {
        Scale<W>(p, b.scores + i * b.scores_row);
      }
      ForQueries<W, WeightedSumStep>(b, p);
    }
    for (int64_t i = 0; i < b.count; ++i) {
      const Query& query = b.queries[i];
      const Keys& keys = *query.keys;
      float* const scores = b.scores + i * b.scores_row;
      for (int64_t j = b.shared; j < keys.size; j += p.size) {
        p.Find(b, keys, j, keys.size, b.v_cache, b.v_scale, 1);
        if (b.v_scale != nullptr) Scale<W>(p, scores);
        WeighRows<W, 1>(b, p, i);
      }
      const float* const even = b.sums + 2 * i * b.dim;
      const float* const odd = even + b.dim;
      int64_t d = 0;
      for (; d + W <= b.dim; d += W) {
        Store<W>(query.y + d, Load<W>(even + d) + Load<W>(odd + d));
      }
      for (; d < b.dim; ++d) {
        float value = 0;
        for (int64_t j = 0; j < keys.size; ++j) {
          value += scores[j] * Wide(b.v_cache[keys.Slot(j) * b.width + d]);
        }
        query.y[d] = value;
      }
    }
  }
};

// For simd::Dispatch.
template <typename C>
struct AttendOver {
  template <int W>
  using Blocks = AttentionBlock<C, W>;
};

}  // namespace espalier::attention_block
