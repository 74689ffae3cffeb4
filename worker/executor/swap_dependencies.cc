#include "worker/executor/swap_dependencies.h"

#include <algorithm>

#include "ops/program/buffer_accesses.h"

namespace espalier {
namespace {

const v1::SwapInstruction* SwapOf(const v1::Instruction& instruction) {
  if (instruction.has_swap_out()) return &instruction.swap_out();
  return instruction.has_swap_in() ? &instruction.swap_in() : nullptr;
}

}  // namespace

SwapDependencies FindSwapDependencies(const v1::Program& program, const ProgramMemory& memory) {
  SwapDependencies dependencies;
  dependencies.before.resize(program.instructions_size());
  std::vector<int> running;  // swaps that no instruction waited for yet
  for (int i = 0; i < program.instructions_size(); ++i) {
    const v1::Instruction& instruction = program.instructions(i);
    const v1::SwapInstruction* swap = SwapOf(instruction);
    if (running.empty() && swap == nullptr) continue;
    const std::vector<BufferAccess> accesses = AccessesOf(instruction);
    const auto must_end = [&](int other) {
      const v1::Instruction& earlier = program.instructions(other);
      const v1::SwapInstruction& copy = *SwapOf(earlier);
      if (swap != nullptr && swap->host_slot() == copy.host_slot()) return true;
      const char* begin = memory.data(copy.buffer());
      const char* end = begin + memory.bytes(copy.buffer());
      return std::any_of(accesses.begin(), accesses.end(), [&](const BufferAccess& access) {
        const char* touched = memory.data(access.buffer);
        const bool overlap = touched < end && begin < touched + memory.bytes(access.buffer);
        return overlap && (access.writes || earlier.has_swap_in());
      });
    };
    const auto kept = std::stable_partition(running.begin(), running.end(),
                                            [&](int other) { return !must_end(other); });
    dependencies.before[i].assign(kept, running.end());
    running.erase(kept, running.end());
    if (swap != nullptr) running.push_back(i);
  }
  dependencies.at_end = running;
  return dependencies;
}

}  // namespace espalier
