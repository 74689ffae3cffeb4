// Leaves out what no output needs.
#pragma once

#include <string>

#include "ops/graph/graph.h"

namespace espalier::onnx_import {

// Nodes, parameters and constants that no output depends on go; inputs stay.
Graph RemoveDeadCode(Graph graph);

// Same structure, attributes and constants (parameters are not compared)? Otherwise the name of the
// first node that differs, or "outputs".
std::string FirstDifference(const Graph& a, const Graph& b);

}  // namespace espalier::onnx_import
