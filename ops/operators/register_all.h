// Registers all operator definitions. docs/reference/operators.md lists them.
#pragma once

#include "ops/schema/registry.h"

namespace espalier {

// Adds the operators of every file in this folder to an empty registry. The build generates the
// list (operators.inc) from the files.
void RegisterAllOperators(OpRegistry& registry);

}  // namespace espalier
