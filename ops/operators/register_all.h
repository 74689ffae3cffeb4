// All operator definitions of Espalier.
#pragma once

#include "ops/schema/registry.h"

namespace espalier {

// Adds every operator that a file of this folder registers (operators.inc, made by BUILD) to an
// empty registry.
void RegisterAllOperators(OpRegistry& registry);

}  // namespace espalier
