// Horizontal fusion: groups of adjacent instructions that one kernel runs (as Apex's
// multi_tensor_apply). Saves launches of small kernels, and reads matrices that share an input in
// one pass.
#pragma once

#include <vector>

#include "espalier/v1/program.pb.h"
#include "ops/kernel/kernel.h"
#include "worker/executor/program_memory.h"
#include "worker/executor/swap_dependencies.h"

namespace espalier {

// Returns for each instruction the size of the group that it starts: 1 if it runs alone, 0 if an
// earlier group contains it. Adjacent instructions form a group
// - if they are updates by the same operator with equal attributes, schedule and scale that work
//   element by element (neither `sums` nor `result`), and their operands do not overlap;
// - in batch-invariant programs, if their kernels support it
//   (KernelRegistry::SupportsHorizontalFusion), nothing that one writes overlaps what another
//   reads or writes, and only the first depends on a swap.
std::vector<int> MultiTensorGroups(const v1::Program& program, const ProgramMemory& memory,
                                   const SwapDependencies& dependencies,
                                   const KernelRegistry& kernels);

}  // namespace espalier
