// Dead code elimination.
#pragma once

#include <string>

#include "ops/graph/graph.h"

namespace espalier::onnx_import {

// Removes nodes, parameters and constants that no output depends on. Keeps inputs.
Graph RemoveDeadCode(Graph graph);

// Compares structure, attributes and constants, but not parameters. Returns the name of the first
// node that differs, or "outputs"; empty if there is no difference.
std::string FirstDifference(const Graph& a, const Graph& b);

}  // namespace espalier::onnx_import
