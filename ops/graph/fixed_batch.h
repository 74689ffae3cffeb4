// Graphs whose inputs fix the size of the batch.
#pragma once

#include <cstdint>

#include "ops/graph/graph.h"

namespace espalier {

// Returns the first dimension that all inputs have, if none of them leaves it open; else 0.
inline int64_t FixedBatchOf(const Graph& graph) {
  int64_t batch = 0;
  for (const Value& value : graph.values()) {
    if (value.kind != ValueKind::kInput) continue;
    const int64_t first = value.type.dims.empty() ? 0 : value.type.dims[0];
    if (first <= 0 || (batch > 0 && first != batch)) return 0;
    batch = first;
  }
  return batch;
}

}  // namespace espalier
