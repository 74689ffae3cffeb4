// What CheckProgram consists of. Each part relies on those before it; messages name the buffer
// or the instruction; CheckProgram puts the name of the program in front.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "espalier/v1/program.pb.h"
#include "worker/executor/check_program.h"

namespace espalier {

inline constexpr int64_t kMaxHostSlots = 1 << 20;

template <typename... Parts>
absl::Status BadProgram(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// Shapes, places in the arena, literals; fills in all that CheckedProgram says of buffers.
absl::Status CheckBuffers(const v1::Program& program, CheckedProgram* checked);

// Operands of every instruction; fills in host_slot_bytes and what the program needs.
absl::Status CheckInstructions(const v1::Program& program, CheckedProgram* checked);

}  // namespace espalier
