// All operator definitions of Espalier.
#pragma once

#include "ops/schema/registry.h"

namespace espalier {

// Adds every operator of operators.inc to an empty registry.
void RegisterAllOperators(OpRegistry& registry);

}  // namespace espalier
