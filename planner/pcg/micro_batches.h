// Micro-batches: the batch is cut into equal parts that run one behind the other, and the gradients
// of all of them are added up before one update (GPipe, Huang et al., NeurIPS 2019; what PyTorch
// users know as gradient accumulation). The mathematics stays: every part knows its place in the
// whole batch, as the parts of a split do, so losses are means over all of it and dropout draws
// the same numbers.
#pragma once

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "planner/pcg/placement.h"
#include "planner/pcg/structure.h"

namespace espalier {

// More would be programs of millions of instructions, and hours of simulation.
inline constexpr int kMaxMicroBatches = 4096;

// Finds what of each operator and tensor belongs to the batch, from the graph's inputs, whose
// dimension 0 it is, by the operators' split rules; and turns `structure` into that of one part.
// InvalidArgument names the operator that stands in the way: one that does not split along the
// batch, or that reads what another has summed over it (batch norm's statistics), or a batch that
// `micro_batches` does not divide, or more than kMaxMicroBatches. With 1 nothing changes.
absl::Status SplitIntoMicroBatches(int micro_batches, PcgStructure* structure);

// `structure` with so much less of everything that belongs to the batch, as if that were all of it;
// for costs. Errors as SplitIntoMicroBatches, but that what sums over the batch may be read: it sums over less.
absl::Status SplitBatchForCosts(int parts, PcgStructure* structure);

// By forward node: the axis that is the batch, -1 where there is none. What stands in the way of
// SplitIntoMicroBatches is passed over.
std::vector<int> BatchAxes(const PcgStructure& structure);

// What `position` leaves of a micro-batch that is added to that of earlier ones: gradients of
// parameters, each with the layout in which it waits for the last one.
std::vector<std::pair<ValueId, int>> AccumulatedGradients(const PcgStructure& structure,
                                             const Placement& placement, LayoutTable& layouts,
                                             const Position& position);

}  // namespace espalier
