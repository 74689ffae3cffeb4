// Instructions that one kernel can run together: a launch for each costs more than small ones'
// work, and matrices that share an input are read in one piece.
#pragma once

#include <vector>

#include "ops/kernel/kernel.h"
#include "espalier/v1/program.pb.h"
#include "worker/executor/program_memory.h"
#include "worker/executor/swap_dependencies.h"

namespace espalier {

// By instruction: how many instructions from it on are run as one. 1 for all others, 0 for those
// that an earlier one takes along. Neighbours go together
// - if they are updates by the same operator with the same attributes, schedule and scale that move
//   their parameter element by element (neither `sums` nor `result`), and their operands do not
//   overlap;
// - in batch-invariant programs, if their kernels take several (KernelRegistry::SupportsHorizontalFusion), nothing
//   that one writes overlaps what another reads or writes, and none but the first dependencies for a swap.
std::vector<int> MultiTensorGroups(const v1::Program& program, const ProgramMemory& memory,
                                   const SwapDependencies& dependencies, const KernelRegistry& kernels);

}  // namespace espalier
