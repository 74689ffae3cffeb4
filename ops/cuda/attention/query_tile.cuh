// Which keys of the paged KV cache the rows of a batch see, and how queries are grouped into tiles
// of 16 for tensor cores.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/cuda/math/numeric.cuh"
#include "ops/cuda/runtime/device_fault.h"

namespace espalier {
namespace cuda_paged_attention {

// How dot products become scores: scale, softcap, ALiBi, sliding window.
struct ScoreMod {
  float scale, softcap;  // softcap 0: none
  const float* slopes;   // null: no ALiBi
  bool alibi_bf16;
  int64_t window;  // 0: all keys

  // Whether scores are only scaled.
  __device__ bool Plain() const { return softcap <= 0 && slopes == nullptr; }
  // Score of key number j of `size`.
  __device__ float Of(float dot, int head, int j, int size) const {
    float score = dot * scale;
    if (softcap > 0) score = softcap * tanhf(score / softcap);
    if (slopes == nullptr) return score;
    const float slope = slopes[head];
    if (!alibi_bf16) return score + slope * static_cast<float>(j - (size - 1));
    const auto round = [](float x) { return __bfloat162float(__float2bfloat16_rn(x)); };
    return score + round(round(slope) * round(static_cast<float>(j))) * scale;
  }
};

// The tables of the batch (ops/kernel/paged_attention_inputs.h) and their sizes.
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

  __device__ int Checked(int64_t row, int slot) const {
    if (slot >= 0 && slot < cache_slots) return slot;
    faults.Report(FaultKind::kCacheSlot, row, slot, cache_slots);
    return 0;
  }
};

// The keys that one row sees: numbers `begin` to `size` - 1 of its list, which holds `prefix` keys
// of the sequence and then the row's ancestors. Empty after a fault in the tables.
struct Keys {
  const int32_t* sequence;
  const int32_t* ancestors;
  int prefix, size, begin;

  __device__ static Keys Of(const Batch& b, int64_t row, int64_t window) {
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
    const int64_t size = prefix + last - first;
    return {b.sequence_slots + start, b.ancestor_slots + first, static_cast<int>(prefix),
            static_cast<int>(size),
            window > 0 && size > window ? static_cast<int>(size - window) : 0};
  }

  __device__ int Slot(const Batch& b, int64_t row, int j) const {
    return b.Checked(row, j < prefix ? sequence[j] : ancestors[j - prefix]);
  }
  // Whether the row sees any key in [from, to).
  __device__ bool Sees(int from, int to) const { return size > from && begin < to; }
  // Whether the row sees all keys in [from, to), and all belong to the sequence.
  __device__ bool SeesAllInSequence(int from, int to) const {
    return begin <= from && prefix >= to;
  }
  __device__ bool HasAncestors(int from, int to) const {
    return size > prefix && size > from && prefix < to;
  }
};

// Up to 16 queries (m of an mma) that are multiplied with the same keys: adjacent heads of one KV
// head, of adjacent rows of one sequence.
struct QueryTile {
  static constexpr int kQueries = 16;
  // No tile crosses a multiple of this row number, which bounds the search for a row's tile.
  static constexpr int kStretch = 64;

  // How heads fill tiles.
  struct Heads {
    int all, of_key, of_tile;

    __host__ __device__ static Heads Of(int heads, int kv_heads) {
      const int of_key = heads / kv_heads;
      return {heads, of_key, of_key < kQueries ? of_key : kQueries};
    }
    __host__ __device__ int TilesOfKey() const { return (of_key + of_tile - 1) / of_tile; }
    __host__ __device__ int TilesOfRow() const { return all / of_key * TilesOfKey(); }
    __host__ __device__ int MaxRows() const { return kQueries / of_tile; }
  };

  int64_t row;  // the first
  int rows;     // 0: another block has this tile
  int head, heads, kv_head, of_tile;

  // The tile of block `block`: one of the TilesOfRow() of row `block` / TilesOfRow(). To be called
  // by all lanes of a warp.
  __device__ static QueryTile Of(const Batch& b, Heads h, uint32_t block) {
    QueryTile tile;
    const auto tiles_of_row = static_cast<uint32_t>(h.TilesOfRow());
    tile.row = block / tiles_of_row;
    const int number = static_cast<int>(block % tiles_of_row);
    tile.kv_head = number / h.TilesOfKey();
    const int head = number % h.TilesOfKey() * h.of_tile;
    tile.head = tile.kv_head * h.of_key + head;
    tile.heads = min(h.of_tile, h.of_key - head);
    tile.of_tile = h.of_tile;
    tile.rows = RowsFrom(b, tile.row, h.MaxRows());
    return tile;
  }

  // Query number `query`: its row within the tile, and its head.
  struct Query {
    int row, head;
    bool there;
  };
  __device__ Query At(int query) const {
    const int of_row = query / of_tile, of_head = query % of_tile;
    return {of_row, head + of_head, of_row < rows && of_head < heads};
  }

 private:
  // Number of rows of the tile that begins at `row`; 0 if the tile begins before `row`. Rows of a
  // tile belong to one sequence, and all or none have ancestors.
  __device__ static int RowsFrom(const Batch& b, int64_t row, int most) {
    if (most == 1) return 1;
    const int lane = static_cast<int>(threadIdx.x % 32),
              in_stretch = static_cast<int>(row % kStretch);
    const int32_t sequence = b.row_sequence[row];
    const auto has_ancestors = [&](int64_t r) {
      return b.ancestor_start[r + 1] > b.ancestor_start[r];
    };
    const bool ancestors = has_ancestors(row);
    const auto alike = [&](int64_t r) {
      return b.row_sequence[r] == sequence && has_ancestors(r) == ancestors;
    };
    // Ancestors are processed row by row, so smaller tiles are faster.
    if (ancestors) most = min(most, kQueries / 2);
    int before = 0;
    while (before < in_stretch) {
      const int i = before + lane;
      const uint32_t others = __ballot_sync(0xffffffffu, i >= in_stretch || !alike(row - 1 - i));
      if (others == 0) {
        before += 32;
        continue;
      }
      before += __ffs(static_cast<int>(others)) - 1;
      break;
    }
    if (before % most != 0) return 0;
    const int64_t next = row + 1 + lane;
    const uint32_t others = __ballot_sync(
        0xffffffffu, in_stretch + 1 + lane >= kStretch || next >= b.rows || !alike(next));
    return min(most, others == 0 ? most : __ffs(static_cast<int>(others)));
  }
};

// The union of the keys that a tile's rows see.
struct QueryTileKeys {
  int begin = INT32_MAX, prefix = 0, end = 0;
  bool ancestors = false;
  const int32_t* sequence = nullptr;

  __device__ static QueryTileKeys Of(const Keys* keys, int rows) {
    QueryTileKeys all;
    for (int r = 0; r < rows; ++r) {
      if (keys[r].size == 0) continue;
      all.begin = min(all.begin, keys[r].begin);
      all.prefix = max(all.prefix, keys[r].prefix);
      all.end = max(all.end, keys[r].size);
      all.ancestors = all.ancestors || keys[r].size > keys[r].prefix;
      all.sequence = keys[r].sequence;
    }
    all.begin = min(all.begin, all.end);
    return all;
  }
};

}  // namespace cuda_paged_attention
}  // namespace espalier
