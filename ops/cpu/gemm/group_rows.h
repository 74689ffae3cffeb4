// Sorts rows by a key (their expert or LoRA adapter), so that the weights of a key are read once
// for all of its rows (grouped GEMM).
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

namespace espalier {

class RowsByGroup {
 public:
  // Counting sort of rows 0 to rows - 1 by keys[row] in [first, last]; stable. Returns -1, or the
  // first row whose key lies outside.
  int64_t Sort(const int32_t* keys, int64_t rows, int64_t first, int64_t last) {
    first_ = first;
    start_.assign(static_cast<size_t>(last - first + 2), 0);
    for (int64_t i = 0; i < rows; ++i) {
      if (keys[i] < first || keys[i] > last) return i;
      ++start_[static_cast<size_t>(keys[i] - first + 1)];
    }
    std::partial_sum(start_.begin(), start_.end(), start_.begin());
    order_.resize(static_cast<size_t>(rows));
    next_.assign(start_.begin(), start_.end());
    for (int64_t i = 0; i < rows; ++i) {
      order_[static_cast<size_t>(next_[static_cast<size_t>(keys[i] - first)]++)] = i;
    }
    return -1;
  }

  // After Sort: the sorted rows, and the range [begin(key), end(key)) of each key among them.
  const std::vector<int64_t>& order() const { return order_; }
  int64_t begin(int64_t key) const { return start_[static_cast<size_t>(key - first_)]; }
  int64_t end(int64_t key) const { return start_[static_cast<size_t>(key - first_ + 1)]; }

 private:
  int64_t first_ = 0;
  std::vector<int64_t> start_, next_;
  std::vector<int64_t> order_;
};

}  // namespace espalier
