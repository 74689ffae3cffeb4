// Regions of a dense tensor that are contiguous in memory.
#pragma once

#include <optional>

#include "ops/tensor/shape.h"

namespace espalier {

// If `piece` lies inside the dense `box` and is contiguous there, returns the index in `box` of its
// first element.
inline std::optional<int64_t> ContiguousOffset(const Region& piece, const Region& box) {
  const size_t rank = box.size.size();
  if (piece.size.size() != rank) return std::nullopt;
  int64_t begin = 0;
  bool cut = false;  // by an inner dimension
  for (size_t d = 0; d < rank; ++d) {
    const int64_t offset = piece.start[d] - box.start[d];
    if (offset < 0 || piece.size[d] > box.size[d] - offset) return std::nullopt;
    begin = begin * box.size[d] + offset;
  }
  for (size_t d = rank; d-- > 0;) {
    if (cut && piece.size[d] != 1) return std::nullopt;
    cut = cut || piece.size[d] != box.size[d];
  }
  return begin;
}

}  // namespace espalier
