// Softmax attention of a few queries that see the same keys but for the last ones: each key and
// value is read from memory, and widened, once for several of them. A query's own sums are always
// the same, whatever it stands beside: key number j of its list has its place in them, a product is
// DotTile's, and even and odd keys of the weighted sum of values add up apart.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ops/cpu/dot_tile.h"
#include "ops/cpu/kv_forms.h"
#include "ops/cpu/vector_math.h"

namespace espalier::attend {

using kv::LoadWide;
using kv::Wide;

constexpr int64_t kMostQueries = 8;  // of a block
constexpr int64_t kKeysAtOnce = 32;  // that stay in the nearest cache while all queries take them
constexpr int64_t kKeysAhead = 16;   // asked for before they are needed
constexpr int64_t kValuesAhead = 8;

// The keys that one row sees.
struct Keys {
  const int32_t* prefix;
  int64_t prefix_size;
  const int32_t* ancestors;
  int64_t size;  // prefix and ancestors
  int64_t sequence;
  int64_t first = 0;  // position of key 0: how many lie before the window

  ESPALIER_INLINE int64_t Slot(int64_t j) const {
    return j < prefix_size ? prefix[j] : ancestors[j - prefix_size];
  }
};

// A head of a row. Its row sees at least one key.
struct Query {
  const float* q;  // [dim]
  float* y;        // [dim]
  const Keys* keys;
  float slope;  // 0: no ALiBi
};

// Floats that a block's query needs beside itself, of so many keys.
inline int64_t ScoresOf(int64_t keys) { return (keys + 15) / 16 * 16 + 16; }

// C: an element of the cache.
template <typename C>
struct Block {
  const Query* queries;
  int64_t count;     // 1 to kMostQueries
  int64_t shared;    // the first keys of all: even, or all of them
  const C* k_cache;  // the queries' head of slot 0
  const C* v_cache;
  const float* k_scale;  // likewise; null: none
  const float* v_scale;
  int64_t width;  // from one slot to the next
  int64_t heads;  // scales from one slot to the next
  int64_t dim;
  float scale;
  float softcap;  // 0: none
  bool alibi_bf16;
  float* scores;       // [count, row]
  int64_t scores_row;  // ScoresOf(the most keys)
  float* sums;         // [count, 2, dim]
};

// Asks memory for n elements. Slots lie anywhere, so the processor does not see what comes next.
template <typename C>
ESPALIER_INLINE void Fetch(const C* p, int64_t n) {
  const char* bytes = reinterpret_cast<const char*>(p);
  const int64_t size = n * static_cast<int64_t>(sizeof(C));
  for (int64_t at = 0; at < size; at += 64) __builtin_prefetch(bytes + at);
}

// Scaled products of queries `at` to `at` + R with keys begin to end. Up to W - 1 scores behind
// them are written over.
template <int W, int R, typename C>
ESPALIER_INLINE void Products(const Block<C>& b, int64_t at, int64_t begin, int64_t end) {
  using namespace simd;
  constexpr int K = W / R;
  const Keys& keys = *b.queries[at].keys;
  const float* q[R];
  for (int r = 0; r < R; ++r) q[r] = b.queries[at + r].q;
  for (int64_t j = begin; j < end; j += K) {
    const C* rows[K];
    Float<W> scales = {};
    for (int c = 0; c < K; ++c) {
      const int64_t slot = keys.Slot(std::min(j + c, end - 1));
      rows[c] = b.k_cache + slot * b.width;
      // The first queries bring them for the others.
      if (at == 0) {
        const int64_t ahead = std::min(j + c + kKeysAhead, keys.size - 1);
        Fetch(b.k_cache + keys.Slot(ahead) * b.width, b.dim);
      }
      const float scale = b.k_scale == nullptr ? b.scale : b.scale * b.k_scale[slot * b.heads];
      for (int r = 0; r < R; ++r) scales[r * K + c] = scale;
    }
    float products[W];
    Store<W>(products, DotTile<W, R, K>(q, rows, b.dim) * scales);
    for (int r = 0; r < R; ++r) {
      std::memcpy(b.scores + (at + r) * b.scores_row + j, products + r * K, K * sizeof(float));
    }
  }
}

// Adds keys begin to end, weighted, to vectors d to d + P of the sums of queries `at` to `at` + R.
// `begin` is even.
template <int W, int R, int P, typename C>
ESPALIER_INLINE void Weigh(const Block<C>& b, int64_t at, int64_t begin, int64_t end, int64_t d) {
  using namespace simd;
  const Keys& keys = *b.queries[at].keys;
  const float* const scores = b.scores + at * b.scores_row;
  float* const sums = b.sums + 2 * at * b.dim + d;
  Float<W> acc[R][2][P];
  for (int i = 0; i < 2 * R; ++i) {
    for (int p = 0; p < P; ++p) acc[i / 2][i % 2][p] = Load<W>(sums + i * b.dim + p * W);
  }
  int64_t j = begin;
  for (; j + 2 <= end; j += 2) {
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; ++odd) {
      if (at == 0) {
        const int64_t ahead = std::min(j + odd + kValuesAhead, keys.size - 1);
        Fetch(b.v_cache + keys.Slot(ahead) * b.width + d, P * W);
      }
      const C* v = b.v_cache + keys.Slot(j + odd) * b.width + d;
      Float<W> wide[P];
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) wide[p] = LoadWide<W>(v + p * W);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const Float<W> weight = Splat<W>(scores[r * b.scores_row + j + odd]);
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) acc[r][odd][p] = weight * wide[p] + acc[r][odd][p];
      }
    }
  }
  if (j < end) {
    const C* v = b.v_cache + keys.Slot(j) * b.width + d;
    for (int r = 0; r < R; ++r) {
      const Float<W> weight = Splat<W>(scores[r * b.scores_row + j]);
      for (int p = 0; p < P; ++p) {
        acc[r][0][p] = weight * LoadWide<W>(v + p * W) + acc[r][0][p];
      }
    }
  }
  for (int i = 0; i < 2 * R; ++i) {
    for (int p = 0; p < P; ++p) Store<W>(sums + i * b.dim + p * W, acc[i / 2][i % 2][p]);
  }
}

template <int W, int R, typename C>
ESPALIER_INLINE void WeighRows(const Block<C>& b, int64_t at, int64_t begin, int64_t end) {
  constexpr int P = R == 4 ? 2 : W == 16 || R == 1 ? 4 : 2;  // what the registers hold
  int64_t d = 0;
  for (; d + P * W <= b.dim; d += P * W) Weigh<W, R, P>(b, at, begin, end, d);
  for (; d + W <= b.dim; d += W) Weigh<W, R, 1>(b, at, begin, end, d);
}

// Calls Step::Run<R>(b, at, begin, end) for all queries, as many at once as the registers hold.
template <int W, typename Step, typename C>
ESPALIER_INLINE void ForQueries(const Block<C>& b, int64_t begin, int64_t end) {
  int64_t at = 0;
  if constexpr (W == 16) {
    for (; at + 4 <= b.count; at += 4) Step::template Run<W, 4>(b, at, begin, end);
  }
  for (; at + 2 <= b.count; at += 2) Step::template Run<W, 2>(b, at, begin, end);
  if (at < b.count) Step::template Run<W, 1>(b, at, begin, end);
}

struct ProductStep {
  template <int W, int R, typename C>
  static ESPALIER_INLINE void Run(const Block<C>& b, int64_t at, int64_t begin, int64_t end) {
    Products<W, R>(b, at, begin, end);
  }
};

struct WeighStep {
  template <int W, int R, typename C>
  static ESPALIER_INLINE void Run(const Block<C>& b, int64_t at, int64_t begin, int64_t end) {
    WeighRows<W, R>(b, at, begin, end);
  }
};

ESPALIER_INLINE float RoundToBF16(float x) { return BF16ToF32(F32ToBF16(x)); }

// What ALiBi adds to the scaled product with key j.
template <typename C>
ESPALIER_INLINE float Alibi(const Block<C>& b, const Query& query, int64_t j) {
  const Keys& keys = *query.keys;
  if (!b.alibi_bf16) return query.slope * static_cast<float>(j - (keys.size - 1));
  return RoundToBF16(RoundToBF16(query.slope) * RoundToBF16(static_cast<float>(keys.first + j))) *
         b.scale;
}

// Of products weights, times the scales of their values.
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
  if (b.v_scale == nullptr) return;
  for (int64_t j = 0; j < n; ++j) scores[j] *= b.v_scale[keys.Slot(j) * b.heads];
}

template <typename C, int W>
struct AttendBlock {
  static ESPALIER_INLINE void Run(const Block<C>* block) {
    using namespace simd;
    const Block<C>& b = *block;
    for (int64_t j = 0; j < b.shared; j += kKeysAtOnce) {
      ForQueries<W, ProductStep>(b, j, std::min(j + kKeysAtOnce, b.shared));
    }
    for (int64_t i = 0; i < b.count; ++i) {
      Products<W, 1>(b, i, b.shared, b.queries[i].keys->size);
      Softmax<W>(b, b.queries[i], b.scores + i * b.scores_row);
    }
    std::memset(b.sums, 0, static_cast<size_t>(2 * b.count * b.dim) * sizeof(float));
    for (int64_t j = 0; j < b.shared; j += kKeysAtOnce) {
      ForQueries<W, WeighStep>(b, j, std::min(j + kKeysAtOnce, b.shared));
    }
    for (int64_t i = 0; i < b.count; ++i) {
      const Query& query = b.queries[i];
      const Keys& keys = *query.keys;
      WeighRows<W, 1>(b, i, b.shared, keys.size);
      const float* const even = b.sums + 2 * i * b.dim;
      const float* const odd = even + b.dim;
      int64_t d = 0;
      for (; d + W <= b.dim; d += W) {
        Store<W>(query.y + d, Load<W>(even + d) + Load<W>(odd + d));
      }
      for (; d < b.dim; ++d) {
        const float* const scores = b.scores + i * b.scores_row;
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
  using Blocks = AttendBlock<C, W>;
};

}  // namespace espalier::attend
