// A box of a tensor as contiguous ranges of the whole tensor's elements.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/tensor/shape.h"

namespace espalier {

// The contiguous ranges of a box in the whole tensor's memory, in order.
class BoxRanges {
 public:
  // REQUIRES: the box is not empty.
  BoxRanges(const Dims& whole, const Dims& start, const Dims& size)
      : whole_(whole), start_(start), size_(size), at_(start) {
    // A range ends at a dimension that is not taken whole.
    inner_ = whole.size();
    while (inner_ > 0) {
      --inner_;
      length_ *= size[inner_];
      if (size[inner_] != whole[inner_]) break;
    }
  }

  // Returns false at the end.
  bool Next(int64_t* begin, int64_t* count) {
    if (done_) return false;
    *begin = 0;
    for (size_t d = 0; d < whole_.size(); ++d) *begin = *begin * whole_[d] + at_[d];
    *count = length_;
    done_ = true;
    for (size_t d = inner_; d-- > 0 && done_;) {
      done_ = ++at_[d] == start_[d] + size_[d];
      if (done_) at_[d] = start_[d];
    }
    return true;
  }

 private:
  const Dims whole_, start_, size_;
  Dims at_;
  size_t inner_ = 0;    // dimensions before it are iterated
  int64_t length_ = 1;  // of each range
  bool done_ = false;
};

}  // namespace espalier
