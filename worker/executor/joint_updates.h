// Updates that one kernel can make together: optimisers touch many small parameters, and a launch
// for each costs more than the work.
#pragma once

#include <vector>

#include "proto/program.pb.h"
#include "worker/executor/program_memory.h"

namespace espalier {

// By instruction: how many instructions from it on are one update. 1 for all others, 0 for those
// that an earlier one takes along. Neighbours go together if they are the same operator with the
// same attributes, schedule and scale, move their parameter element by element (neither `sums` nor
// `result`), and their operands do not overlap.
std::vector<int> JointUpdates(const proto::Program& program, const ProgramMemory& memory);

}  // namespace espalier
