// The graph's tensors that a program's buffers hold.
#pragma once

#include <string>
#include <vector>

#include "espalier/v1/program.pb.h"

namespace espalier {

// Returns by buffer the name of its tensor in the graph: without the "#2" of a second buffer for
// the same tensor on one rank.
std::vector<std::string> TensorNames(const v1::Program& program);

}  // namespace espalier
