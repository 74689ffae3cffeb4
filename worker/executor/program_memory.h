// Memory of a program's buffers and their contents before the first step.
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
  // `program` and `checked` must outlive this and not move. With `shared`, uses its parameters (by
  // tensor and region), and its arena if this program would not overwrite what the other keeps
  // between steps; otherwise allocates an arena. Always allocates host slots; those of streamed
  // parameters on first use.
  absl::Status Place(const v1::Program& program, const CheckedProgram& checked, Device* device,
                     const ProgramMemory* shared);

  // Writes literals, and parameters from their initial bytes or initializers. Errors name the
  // buffer.
  absl::Status FillAtStart();

  char* data(int buffer) const { return places_[buffer]; }
  int64_t bytes(int buffer) const { return checked_->specs[buffer].bytes(); }
  // True if the buffer is a streamed parameter: outside the arena between steps, in a host slot or
  // in files.
  bool IsStreamed(int buffer) const { return checked_->streamed_slot[buffer] >= 0; }
  // Backing files of a streamed parameter; empty if it is in its host slot.
  const std::vector<FileRange>& files(int buffer) const { return files_[buffer]; }
  // Returns a host slot, allocating it on first use. LoadIntoSlot reads a file-backed parameter
  // into its slot.
  absl::StatusOr<char*> Slot(int slot);
  absl::StatusOr<char*> LoadIntoSlot(int buffer);
  // Backs the parameter with files that hold its bytes as memory does, and frees its slot.
  // REQUIRES: IsStreamed(buffer) and ranges of its size.
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
  std::vector<std::vector<FileRange>> files_;            // by buffer
  char* base_ = nullptr;                                 // own or shared arena
  std::vector<char*> shared_;  // by buffer: parameter of `shared`, or null
  std::vector<char*> places_;
};

}  // namespace espalier
