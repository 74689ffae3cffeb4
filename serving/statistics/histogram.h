// A histogram for hot paths: counting allocates nothing, and a copy is a plain memory copy.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace espalier {

class HistogramCounts {
 public:
  static constexpr size_t kMost = 24;

  // `bounds`, ascending, at most kMost, must outlive this object and its copies.
  constexpr explicit HistogramCounts(absl::Span<const double> bounds) : bounds_(bounds) {}

  void Count(double value) {
    const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
    ++counts_[static_cast<size_t>(at)];
    sum_ += value;
  }

  absl::Span<const double> bounds() const { return bounds_; }
  // Entry i counts values in (bounds()[i - 1], bounds()[i]]; the last entry counts all larger
  // values.
  absl::Span<const int64_t> counts() const { return {counts_.data(), bounds_.size() + 1}; }
  double sum() const { return sum_; }

 private:
  absl::Span<const double> bounds_;
  std::array<int64_t, kMost + 1> counts_{};
  double sum_ = 0;
};

}  // namespace espalier
