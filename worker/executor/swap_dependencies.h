// Swaps run beside the instructions that follow: here is which instruction has to wait for which
// swap.
#pragma once

#include <vector>

#include "espalier/v1/program.pb.h"
#include "worker/executor/program_memory.h"

namespace espalier {

struct SwapDependencies {
  std::vector<std::vector<int>> before;  // by instruction: swaps that must have ended
  std::vector<int> at_end;               // of the step
};

// An instruction waits for a swap_in that fills memory which it touches, for a swap_out from memory
// which it writes, and a swap for an earlier one of its host slot.
SwapDependencies FindSwapDependencies(const v1::Program& program, const ProgramMemory& memory);

}  // namespace espalier
