// The tables of a mixed batch as serving makes them: prompt chunks, token trees and single tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/tensor/dtype.h"

namespace espalier::gpu_check {

struct MixedBatch {
  using Ints = std::vector<int32_t>;
  Ints slots, row_sequence, row_prefix, ancestor_start = {0}, ancestor_slots, sequence_start = {0},
                                        sequence_slots;
  int32_t cache_slots = 1024;

  int rows() const { return static_cast<int>(slots.size()); }

  static MixedBatch Make() {
    MixedBatch b;
    const auto slot = [&b] { return b.taken_++ * 389 % b.cache_slots; };
    // A sequence of `size` tokens; its last `rows` are rows of the batch.
    const auto add_sequence = [&](int size, int rows) {
      const int32_t sequence = static_cast<int32_t>(b.sequence_start.size()) - 1;
      for (int i = 0; i < size; ++i) {
        b.sequence_slots.push_back(slot());
        if (i >= size - rows) b.AddRow(b.sequence_slots.back(), sequence, i + 1);
      }
      b.sequence_start.push_back(static_cast<int32_t>(b.sequence_slots.size()));
    };
    // A token tree behind `size` tokens; parents[i] is the parent of node i, -1: a root.
    const auto add_tree = [&](int size, const std::vector<int>& parents) {
      add_sequence(size, 0);
      const int32_t sequence = static_cast<int32_t>(b.sequence_start.size()) - 2;
      std::vector<Ints> paths;
      for (int parent : parents) {
        Ints path = parent < 0 ? Ints{} : paths[static_cast<size_t>(parent)];
        path.push_back(slot());
        b.AddRow(path.back(), sequence, size, path);
        paths.push_back(std::move(path));
      }
    };
    add_sequence(200, 37);
    add_tree(150, {-1, 0, 0, 0, 1, 1, 2, 3, 3, 4, 4, 5, 6, 7, 8, 9, 9, 10, 12, 15, 19});
    add_sequence(300, 1);
    add_sequence(1, 1);
    add_tree(64, {-1, 0, 1});
    add_tree(0, {-1, -1, 0});
    add_tree(61, {-1, 0, 1, 2, 3, 4, 0});
    add_sequence(70, 70);
    return b;
  }

  // Returns the batch of row i alone.
  MixedBatch Row(int i) const {
    MixedBatch b;
    const auto part = [](const Ints& all, int32_t begin, int32_t end) {
      return Ints(all.begin() + begin, all.begin() + end);
    };
    const size_t row = static_cast<size_t>(i), sequence = static_cast<size_t>(row_sequence[row]);
    b.sequence_slots = part(sequence_slots, sequence_start[sequence], sequence_start[sequence + 1]);
    b.sequence_start.push_back(static_cast<int32_t>(b.sequence_slots.size()));
    b.AddRow(slots[row], 0, row_prefix[row],
             part(ancestor_slots, ancestor_start[row], ancestor_start[row + 1]));
    return b;
  }

 private:
  void AddRow(int32_t slot, int32_t sequence, int32_t prefix, const Ints& ancestors = {}) {
    slots.push_back(slot);
    row_sequence.push_back(sequence);
    row_prefix.push_back(prefix);
    ancestor_slots.insert(ancestor_slots.end(), ancestors.begin(), ancestors.end());
    ancestor_start.push_back(static_cast<int32_t>(ancestor_slots.size()));
  }

  int32_t taken_ = 0;
};

// Combinations of heads, caches and windows to test.
struct MixedAttention {
  DType cache;
  int64_t heads, kv_heads, dim, window;  // window 0: none
  float softcap = 0;                     // 0: none

  std::string Name() const {
    return std::to_string(heads) + " heads on " + std::to_string(kv_heads) + ", " +
           std::to_string(dim) + " wide, cache of " + espalier::Name(cache) +
           (window > 0 ? ", window of " + std::to_string(window) : "") +
           (softcap > 0 ? ", cap" : "");
  }
};

inline constexpr MixedAttention kMixedAttentions[] = {
    {DType::kF32, 4, 2, 64, 0},   {DType::kBF16, 4, 4, 64, 0},   {DType::kF16, 6, 2, 40, 0, 0.5},
    {DType::kI8, 20, 1, 64, 0},   {DType::kBF16, 8, 2, 128, 90}, {DType::kF32, 4, 1, 256, 0},
    {DType::kI8, 5, 5, 128, 0},   {DType::kF32, 7, 7, 36, 33},   {DType::kBF16, 12, 4, 96, 0},
    {DType::kBF16, 32, 4, 64, 0}, {DType::kF16, 8, 1, 256, 70},  {DType::kI8, 6, 3, 20, 50}};

}  // namespace espalier::gpu_check
