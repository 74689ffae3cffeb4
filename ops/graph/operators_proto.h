// Operators of the registry as protobuf messages, for clients that build graphs.
#pragma once

#include "espalier/v1/ops.pb.h"
#include "ops/schema/registry.h"

namespace espalier {

// Whether a metric counts right answers: it compares the scores of classes, as accuracies do.
bool LargerIsBetter(const OpDef& def);

v1::Operator ToProto(const OpDef& def);

// All operators, sorted by name, without the derived gradients.
v1::ListOperatorsReply ListOperators(const OpRegistry& registry);

}  // namespace espalier
