// Parts of CheckProgram, in order: each relies on those above. Messages name the buffer or
// instruction; CheckProgram prepends the program's name.
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

// Checks shapes, arena offsets and literals; fills in everything that CheckedProgram has by buffer.
absl::Status CheckBuffers(const v1::Program& program, CheckedProgram* checked);

// Checks the operands of every instruction; fills in host_slot_bytes and the `needs_` members.
absl::Status CheckInstructions(const v1::Program& program, CheckedProgram* checked);

}  // namespace espalier
