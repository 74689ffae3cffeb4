// Micro-batches: a step runs the batch in equal parts, one after another, accumulates their
// gradients and updates once (GPipe, Huang et al., NeurIPS 2019; PyTorch users know it as gradient
// accumulation). The result does not change: each part knows its place in the whole batch, like the
// parts of a split, so losses are means over the whole batch and dropout draws the same numbers.
#pragma once

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "planner/pcg/placement.h"
#include "planner/pcg/structure.h"

namespace espalier {

// More would give programs of millions of instructions and hours of simulation.
inline constexpr int kMaxMicroBatches = 4096;

// Turns `structure` into that of one micro-batch. Finds the batch axis of every operator and tensor
// by propagating dimension 0 of the graph's inputs through the split rules. Returns
// InvalidArgument, with the operator's name, if an operator does not split along the batch or reads
// a reduction over it (batch norm's statistics; a weighted sum of losses may), if `micro_batches`
// does not divide the batch, or if it exceeds kMaxMicroBatches. Does nothing if `micro_batches`
// is 1.
absl::Status SplitIntoMicroBatches(int micro_batches, PcgStructure* structure);

// Like SplitIntoMicroBatches, but for cost estimates only: treats 1/`parts` of the batch as if it
// were the whole batch. Reductions over the batch may therefore be read.
absl::Status SplitBatchForCosts(int parts, PcgStructure* structure);

// Returns, by forward node, the batch axis, or -1. Ignores what SplitIntoMicroBatches would reject.
std::vector<int> BatchAxes(const PcgStructure& structure);

// Returns the results of `position` that accumulate over micro-batches: gradients of parameters,
// each with the layout in which it is accumulated.
std::vector<std::pair<ValueId, int>> AccumulatedGradients(const PcgStructure& structure,
                                                          const Placement& placement,
                                                          LayoutTable& layouts,
                                                          const Position& position);

}  // namespace espalier
