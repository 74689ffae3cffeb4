// The buffers that an instruction of a program reads and writes.
#pragma once

#include <vector>

#include "espalier/v1/program.pb.h"

namespace espalier {

struct BufferAccess {
  int buffer = 0;
  bool reads = false;
  bool writes = false;  // not operands that a kernel modifies: running statistics, caches
};

// Returns accesses in the order of the instruction's fields, without absent operands; a buffer may
// occur twice.
std::vector<BufferAccess> AccessesOf(const v1::Instruction& instruction);

// Operands of the kernel that a compute or update instruction runs, in the kernel's order; -1:
// absent. Empty for other instructions.
struct KernelOperands {
  std::vector<int> inputs, outputs;
};
KernelOperands KernelOperandsOf(const v1::Instruction& instruction);

// Replaces every buffer index i of the instruction by map[i].
void RenameBuffers(const std::vector<int>& map, v1::Instruction* instruction);

}  // namespace espalier
