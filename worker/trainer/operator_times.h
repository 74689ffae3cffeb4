// Operator times of a training step, reported to the coordinator for later planning.
#pragma once

#include <vector>

#include "espalier/v1/worker.pb.h"
#include "worker/executor/executor.h"

namespace espalier {

// Returns the times, by node and operator, of the step whose total is the median. REQUIRES: at
// least one profile.
v1::OperatorTimes MedianStepTimes(const std::vector<std::vector<InstructionTime>>& profiles);

}  // namespace espalier
