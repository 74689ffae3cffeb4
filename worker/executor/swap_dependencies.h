// Dependencies of instructions on asynchronous swaps, which overlap with the instructions that
// follow them.
#pragma once

#include <vector>

#include "espalier/v1/program.pb.h"
#include "worker/executor/program_memory.h"

namespace espalier {

struct SwapDependencies {
  std::vector<std::vector<int>> before;  // by instruction: swaps to wait for
  std::vector<int> at_end;               // of the step
};

// An instruction waits for a swap_in into memory that it accesses and for a swap_out from memory
// that it writes. A swap waits for earlier swaps of its host slot.
SwapDependencies FindSwapDependencies(const v1::Program& program, const ProgramMemory& memory);

}  // namespace espalier
