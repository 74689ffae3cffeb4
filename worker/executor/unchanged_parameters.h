// The parameters that training leaves as they are: frozen ones, and literals of an imported model.
#pragma once

#include <vector>

#include "worker/executor/executor.h"

namespace espalier {

// By buffer: whether it is a parameter whose memory no instruction of the executor's program
// writes, so that steps change none of its values.
std::vector<bool> UnchangedParameters(const Executor& executor);

}  // namespace espalier
