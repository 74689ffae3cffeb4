// Parameters that stream: a swap_in brings each, in every step, from the host slot in which it lies
// into memory that serves others before and after.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "espalier/v1/program.pb.h"

namespace espalier {

// By buffer: the host slot of a parameter that streams, or -1. It is one that a swap_in brings from
// a slot that no swap_out writes.
std::vector<int> FindStreamedSlots(const v1::Program& program, int64_t max_slots);

// Takes a program's instructions in their order, each after the checks of its indices.
class StreamedParameterChecker {
 public:
  // The references must stay.
  StreamedParameterChecker(const v1::Program& program, const std::vector<int>& streamed_slot)
      : program_(program),
        streamed_slot_(streamed_slot),
        any_(std::any_of(streamed_slot.begin(), streamed_slot.end(), [](int slot) { return slot >= 0; })) {}

  // A parameter that streams has a slot of its own, is read from its swap_in on, and nothing writes
  // it.
  absl::Status Check(const v1::Instruction& instruction);

 private:
  absl::Status CheckSwap(const v1::SwapInstruction& swap);

  const v1::Program& program_;
  const std::vector<int>& streamed_slot_;
  const bool any_;
  std::set<int> arrived_;     // buffers
  std::map<int, int> owner_;  // buffer by host slot
};

}  // namespace espalier
