// Where the buffers of a program lie, and what they hold before the first step.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "proto/program.pb.h"
#include "worker/device/device.h"
#include "worker/executor/check.h"

namespace espalier {

class ProgramMemory {
 public:
  // `program` and `checked` must stay where they are. With `shared`, parameters (by tensor and
  // region) are those of that memory, and its arena is used where nothing of this program would
  // overwrite what the other keeps between steps; otherwise an arena is allocated. Host slots are
  // allocated in any case.
  absl::Status Place(const proto::Program& program, const CheckedProgram& checked, Device* device,
                     const ProgramMemory* shared);

  // Literals, and parameters from their initial bytes or initialisers. Errors name the buffer.
  absl::Status FillAtStart() const;

  char* data(int buffer) const { return places_[buffer]; }
  int64_t bytes(int buffer) const { return checked_->specs[buffer].bytes(); }
  char* host_slot(int slot) const { return host_slots_[slot]->data(); }
  // Where a parameter that streams lies between steps, on the host; null for all other buffers.
  char* home(int buffer) const {
    const int slot = checked_->home_slot[buffer];
    return slot < 0 ? nullptr : host_slot(slot);
  }
  int64_t allocated_bytes() const { return arena_ != nullptr ? arena_->bytes() : 0; }

 private:
  char* FindParameter(int buffer, const ProgramMemory& other) const;
  bool FitsBeside(const ProgramMemory& other) const;
  absl::Status FillBuffer(int buffer) const;

  const proto::Program* program_ = nullptr;
  const CheckedProgram* checked_ = nullptr;
  Device* device_ = nullptr;
  bool sharing_ = false;
  std::unique_ptr<DeviceMemory> arena_;
  std::vector<std::unique_ptr<HostMemory>> host_slots_;
  char* base_ = nullptr;       // of our arena, or of the other's
  std::vector<char*> shared_;  // by buffer: the other's parameter, or null
  std::vector<char*> places_;
};

}  // namespace espalier
