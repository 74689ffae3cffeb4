// Programs of a single operator, for measuring it on a worker.
#pragma once

#include <optional>
#include <vector>

#include "ops/schema/op_def.h"
#include "espalier/v1/program.pb.h"

namespace espalier {

// The forward program of one shard, and then, if the operator is differentiable, that of its
// gradient; of an update without sums, one move of a parameter. Floating-point operands hold small
// random numbers, integer ones zeros.
//
// Operands that the operator before has just written in a step are SCRATCH: what the first input
// mostly is, and the gradients of outputs. All others (weights, tensors saved for the backward
// pass) were last touched long before, and are kept buffers.
std::vector<v1::Program> OperatorPrograms(const OpDef& def, const NodeTypes& shard);

}  // namespace espalier
