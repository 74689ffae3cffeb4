// The operators that flags name: losses, metrics and optimizers.
#pragma once

#include "ops/schema/registry.h"

namespace espalier {

// Returns all operators, registered once.
const OpRegistry& Operators();

}  // namespace espalier
