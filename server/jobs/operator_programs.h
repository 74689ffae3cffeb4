// Programs of a single operator, for measuring it on a worker.
#pragma once

#include <optional>
#include <vector>

#include "ops/schema/op_def.h"
#include "proto/program.pb.h"

namespace espalier {

// The forward program of one shard, and then, if the operator is differentiable, that of its
// gradient. Floating-point operands hold small random numbers, integer ones zeros.
std::vector<proto::Program> OperatorPrograms(const OpDef& def, const NodeTypes& shard);

}  // namespace espalier
