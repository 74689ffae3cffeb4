// Where the buffers of a program lie, and what they hold before the first step.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/program.pb.h"
#include "worker/device/device.h"
#include "worker/executor/check_program.h"

namespace espalier {

class ProgramMemory {
 public:
  // `program` and `checked` must stay where they are. With `shared`, parameters (by tensor and
  // region) are those of that memory, and its arena is used where nothing of this program would
  // overwrite what the other keeps between steps; otherwise an arena is allocated. Host slots are
  // allocated in any case, those of parameters that stream when they are first needed.
  absl::Status Place(const v1::Program& program, const CheckedProgram& checked, Device* device,
                     const ProgramMemory* shared);

  // Literals, and parameters from their initial bytes or initialisers. Errors name the buffer.
  absl::Status FillAtStart();

  char* data(int buffer) const { return places_[buffer]; }
  int64_t bytes(int buffer) const { return checked_->specs[buffer].bytes(); }
  // Whether it is a parameter that lies outside the arena between steps: in a host slot, or in
  // files.
  bool IsStreamed(int buffer) const { return checked_->streamed_slot[buffer] >= 0; }
  // The files in which such a parameter lies; empty: in its slot.
  const std::vector<FileRange>& files(int buffer) const { return files_[buffer]; }
  // Of a host slot, allocated now if it was not needed before. A parameter that lies in files comes
  // into its slot by LoadIntoSlot.
  absl::StatusOr<char*> Slot(int slot);
  absl::StatusOr<char*> LoadIntoSlot(int buffer);
  // From now on the parameter lies in these files, which hold it as memory does; its slot is given
  // back. REQUIRES: IsStreamed(buffer), and its bytes.
  void SetBackingFiles(int buffer, std::vector<FileRange> runs);
  int64_t allocated_bytes() const { return arena_ != nullptr ? arena_->bytes() : 0; }

 private:
  char* FindParameter(int buffer, const ProgramMemory& other) const;
  bool FitsBeside(const ProgramMemory& other) const;
  absl::Status FillBuffer(int buffer);

  const v1::Program* program_ = nullptr;
  const CheckedProgram* checked_ = nullptr;
  Device* device_ = nullptr;
  bool sharing_ = false;
  std::unique_ptr<DeviceMemory> arena_;
  std::vector<std::unique_ptr<HostMemory>> host_slots_;  // null: not allocated
  std::vector<std::vector<FileRange>> files_;              // by buffer
  char* base_ = nullptr;                                 // of our arena, or of the other's
  std::vector<char*> shared_;  // by buffer: the other's parameter, or null
  std::vector<char*> places_;
};

}  // namespace espalier
