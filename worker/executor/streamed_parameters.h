// Streamed parameters (weight offloading): in every step a swap_in copies each from its host slot
// into device memory that other buffers use before and after.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "espalier/v1/program.pb.h"

namespace espalier {

// Returns by buffer the host slot of a streamed parameter, or -1. A parameter is streamed if a
// swap_in reads it from a slot that no swap_out writes.
std::vector<int> FindStreamedSlots(const v1::Program& program, int64_t max_slots);

// Checks instructions in program order, each after the checks of its indices.
class StreamedParameterChecker {
 public:
  // The references must outlive this.
  StreamedParameterChecker(const v1::Program& program, const std::vector<int>& streamed_slot)
      : program_(program),
        streamed_slot_(streamed_slot),
        any_(std::any_of(streamed_slot.begin(), streamed_slot.end(),
                         [](int slot) { return slot >= 0; })) {}

  // Requires that a streamed parameter has its own slot, is read only after its swap_in, and is
  // never written.
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
