// What instructions took in a step of a job, for the coordinator to plan the next one by.
#pragma once

#include <vector>

#include "espalier/v1/worker.pb.h"
#include "worker/executor/executor.h"

namespace espalier {

// Of some steps' profiles, at least one: the times of the step that was the middle one by its
// instructions' sum, by node and operator.
v1::OperatorTimes MedianStepTimes(const std::vector<std::vector<InstructionTime>>& profiles);

}  // namespace espalier
