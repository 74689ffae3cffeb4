// How tensors of a batch belong to its examples.
#pragma once

#include <cstdint>
#include <optional>

#include "ops/graph/graph.h"
#include "ops/probe/expression.h"
#include "ops/tensor/shape.h"

namespace espalier {

enum class BatchLayout {
  kNone,      // they do not: statistics of the batch, parameters
  kRows,      // dimension 0 has rows of the first example, then of the second
  kNotKnown,  // in another way, or the model is for this batch size only
};

// Tells layouts apart by what a batch of twice the size changes.
class BatchLayouts {
 public:
  // `graph` is bound to batches of `size` examples, and must outlive it.
  BatchLayouts(const OpRegistry& registry, const Graph& graph, int64_t size);

  // Of a value, a parameter or a column of the batch that has these dimensions.
  BatchLayout Of(const ProbeTarget& target, const Dims& dims) const;
  // Its dimensions in a batch of twice the size; nullopt if they are not known.
  std::optional<Dims> Twice(const ProbeTarget& target, const Dims& dims) const;

 private:
  const Graph& graph_;
  Graph doubled_;
  const int64_t size_;
  bool known_ = false;
};

}  // namespace espalier
