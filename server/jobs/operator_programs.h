// Programs with a single operator, for measuring its time on a worker.
#pragma once

#include <optional>
#include <vector>

#include "espalier/v1/program.pb.h"
#include "ops/schema/op_def.h"

namespace espalier {

// Returns the forward program of one shard, followed by its backward program if the operator is
// differentiable. For an update without sums, returns one parameter move.
//
// Floating-point operands hold small random numbers, integer operands zeros. Operands that the
// preceding operator has just written are SCRATCH, as they are in a step: usually the first input,
// and the gradients of outputs. All others (weights, tensors saved for the backward pass) were last
// touched long before and are kept buffers.
std::vector<v1::Program> OperatorPrograms(const OpDef& def, const NodeTypes& shard);

}  // namespace espalier
