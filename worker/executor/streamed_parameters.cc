#include "worker/executor/streamed_parameters.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "ops/program/buffer_accesses.h"

namespace espalier {
namespace {

absl::Status Bad(const std::string& what) { return absl::InvalidArgumentError(what); }

}  // namespace

std::vector<int> FindStreamedSlots(const v1::Program& program, int64_t max_slots) {
  std::set<int> written;
  for (const v1::Instruction& instruction : program.instructions()) {
    if (instruction.has_swap_out()) written.insert(instruction.swap_out().host_slot());
  }
  std::vector<int> slots(program.buffers_size(), -1);
  for (const v1::Instruction& instruction : program.instructions()) {
    if (!instruction.has_swap_in()) continue;
    const v1::SwapInstruction& swap = instruction.swap_in();
    if (swap.buffer() < 0 || swap.buffer() >= program.buffers_size() || swap.host_slot() < 0 ||
        swap.host_slot() >= max_slots || written.count(swap.host_slot()) > 0 ||
        program.buffers(swap.buffer()).kind() != v1::PARAMETER_SHARD) {
      continue;
    }
    slots[swap.buffer()] = swap.host_slot();
  }
  return slots;
}

absl::Status StreamedParameterChecker::Check(const v1::Instruction& instruction) {
  if (!any_) return absl::OkStatus();
  if (instruction.has_swap_in()) return CheckSwap(instruction.swap_in());
  for (const BufferAccess& access : AccessesOf(instruction)) {
    if (streamed_slot_[access.buffer] < 0) continue;
    const std::string& name = program_.buffers(access.buffer).name();
    if (access.writes) {
      return Bad(absl::StrCat("it writes parameter '", name,
                              "', which lies on the host and is only read"));
    }
    if (arrived_.count(access.buffer) == 0) {
      return Bad(absl::StrCat("it reads parameter '", name, "' before its swap_in"));
    }
  }
  return absl::OkStatus();
}

absl::Status StreamedParameterChecker::CheckSwap(const v1::SwapInstruction& swap) {
  const int home = streamed_slot_[swap.buffer()];
  if (home < 0) return absl::OkStatus();
  const std::string& name = program_.buffers(swap.buffer()).name();
  if (swap.host_slot() != home) {
    return Bad(absl::StrCat("parameter '", name, "' comes from host slots ", home, " and ",
                            swap.host_slot()));
  }
  const auto [owner, added] = owner_.try_emplace(home, swap.buffer());
  if (!added && owner->second != swap.buffer()) {
    return Bad(absl::StrCat("host slot ", home, " is that of parameter '",
                            program_.buffers(owner->second).name(), "' already"));
  }
  if (program_.has_optimizer()) {
    return Bad(absl::StrCat("parameter '", name,
                            "' lies on the host; in a program that trains, parameters must not"));
  }
  arrived_.insert(swap.buffer());
  return absl::OkStatus();
}

}  // namespace espalier
