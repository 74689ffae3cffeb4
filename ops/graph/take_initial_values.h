// Takes the elements of parameters out of a graph, to pass them on apart from it.
#pragma once

#include <vector>

#include "ops/graph/graph.h"
#include "ops/graph/initial_value.h"

namespace espalier {

// Moves the initial values of all parameters that have one out of the graph. The initializer of
// these parameters becomes kStored.
std::vector<InitialValue> TakeInitialValues(Graph* graph);

}  // namespace espalier
