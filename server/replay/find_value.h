// What the name of a probe means in a graph.
#pragma once

#include <string>

#include "ops/graph/graph.h"

namespace espalier {

// The value of this name, or that of an output of this name, such as "logits"; kNoValue if there is
// none. The programs' side of this is ProbePoints.
inline ValueId FindProbed(const Graph& graph, const std::string& name) {
  const ValueId value = graph.FindValue(name);
  return value != kNoValue ? value : graph.FindOutput(name);
}

}  // namespace espalier
