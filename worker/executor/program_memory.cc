#include "worker/executor/program_memory.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/cpu/layout/copy_box.h"
#include "worker/executor/initialize.h"

namespace espalier {
namespace {

bool IsKeptBuffer(const v1::Buffer& buffer) {
  return buffer.kind() != v1::SCRATCH && buffer.kind() != v1::HOST_INPUT &&
         buffer.kind() != v1::SCHEDULE;
}

}  // namespace

absl::Status ProgramMemory::Place(const v1::Program& program, const CheckedProgram& checked,
                                  Device* device, const ProgramMemory* shared) {
  program_ = &program;
  checked_ = &checked;
  device_ = device;
  sharing_ = shared != nullptr;
  host_slots_.resize(checked.host_slot_bytes.size());
  files_.resize(static_cast<size_t>(program.buffers_size()));
  const std::vector<int>& homes = checked.streamed_slot;
  for (int slot = 0; slot < static_cast<int>(host_slots_.size()); ++slot) {
    if (std::find(homes.begin(), homes.end(), slot) != homes.end()) continue;
    if (absl::StatusOr<char*> made = Slot(slot); !made.ok()) return made.status();
  }
  for (int i = 0; i < program.buffers_size(); ++i) {
    shared_.push_back(sharing_ ? FindParameter(i, *shared) : nullptr);
  }
  if (sharing_ && FitsBeside(*shared)) {
    base_ = shared->base_;
  } else {
    absl::StatusOr<std::unique_ptr<DeviceMemory>> arena = device->Allocate(program.arena_bytes());
    if (!arena.ok()) {
      return absl::Status(arena.status().code(),
                          absl::StrCat("arena of program '", program.name(),
                                       "': ", std::string(arena.status().message())));
    }
    arena_ = *std::move(arena);
    base_ = arena_->data();
  }
  for (int i = 0; i < program.buffers_size(); ++i) {
    places_.push_back(shared_[i] != nullptr ? shared_[i]
                                            : base_ + program.buffers(i).offset_bytes());
  }
  return absl::OkStatus();
}

absl::StatusOr<char*> ProgramMemory::Slot(int slot) {
  std::unique_ptr<HostMemory>& memory = host_slots_[static_cast<size_t>(slot)];
  if (memory == nullptr) {
    absl::StatusOr<std::unique_ptr<HostMemory>> made =
        device_->AllocateHost(checked_->host_slot_bytes[static_cast<size_t>(slot)]);
    if (!made.ok()) return made.status();
    memory = *std::move(made);
  }
  return memory->data();
}

absl::StatusOr<char*> ProgramMemory::LoadIntoSlot(int buffer) {
  absl::StatusOr<char*> data = Slot(checked_->streamed_slot[buffer]);
  if (!data.ok() || files(buffer).empty()) return data;
  if (absl::Status s = ReadRanges(files(buffer), bytes(buffer), *data); !s.ok()) return s;
  files_[buffer].clear();
  return data;
}

void ProgramMemory::SetBackingFiles(int buffer, std::vector<FileRange> runs) {
  files_[buffer] = std::move(runs);
  host_slots_[static_cast<size_t>(checked_->streamed_slot[buffer])] = nullptr;
}

char* ProgramMemory::FindParameter(int buffer, const ProgramMemory& other) const {
  if (program_->buffers(buffer).kind() != v1::PARAMETER_SHARD || IsStreamed(buffer)) {
    return nullptr;
  }
  const int original = checked_->alias_of[buffer] < 0 ? buffer : checked_->alias_of[buffer];
  for (int j = 0; j < other.program_->buffers_size(); ++j) {
    if (other.program_->buffers(j).kind() == v1::PARAMETER_SHARD &&
        other.checked_->alias_of[j] < 0 && !other.IsStreamed(j) &&
        other.checked_->tensor_names[j] == checked_->tensor_names[original] &&
        other.checked_->specs[j] == checked_->specs[original]) {
      return other.data(j) + (program_->buffers(buffer).offset_bytes() -
                              program_->buffers(original).offset_bytes());
    }
  }
  return nullptr;
}

bool ProgramMemory::FitsBeside(const ProgramMemory& other) const {
  if (program_->arena_bytes() > other.program_->arena_bytes()) return false;
  for (int i = 0; i < program_->buffers_size(); ++i) {
    if (shared_[i] != nullptr) continue;
    const v1::Buffer& ours = program_->buffers(i);
    const int64_t begin = ours.offset_bytes(), end = begin + bytes(i);
    // What this program keeps must be kept there by the other, too: a literal of both.
    bool found = !IsKeptBuffer(ours);
    for (int j = 0; j < other.program_->buffers_size(); ++j) {
      const v1::Buffer& theirs = other.program_->buffers(j);
      if (!IsKeptBuffer(theirs)) continue;
      if (ours.kind() == v1::LITERAL && theirs.kind() == v1::LITERAL &&
          ours.name() == theirs.name() && theirs.offset_bytes() == begin &&
          checked_->specs[i] == other.checked_->specs[j]) {
        found = true;
      } else if (begin < theirs.offset_bytes() + other.bytes(j) && end > theirs.offset_bytes()) {
        return false;
      }
    }
    if (!found) return false;
  }
  return true;
}

absl::Status ProgramMemory::FillAtStart() {
  for (int i = 0; i < program_->buffers_size(); ++i) {
    if (absl::Status s = FillBuffer(i); !s.ok()) {
      return absl::Status(s.code(), absl::StrCat("buffer ", i, " ('", program_->buffers(i).name(),
                                                 "'): ", std::string(s.message())));
    }
  }
  return absl::OkStatus();
}

absl::Status ProgramMemory::FillBuffer(int i) {
  const v1::Buffer& buffer = program_->buffers(i);
  const TensorSpec& shard = checked_->specs[i];
  if (shared_[i] != nullptr || checked_->alias_of[i] >= 0) return absl::OkStatus();
  const bool stored = buffer.initializer().kind() == v1::Initializer::STORED;
  if (buffer.kind() == v1::LITERAL) {
    if (stored) return absl::OkStatus();
    return device_->CopyToDevice(data(i), buffer.literal().data(), bytes(i));
  }
  if (buffer.kind() != v1::PARAMETER_SHARD) return absl::OkStatus();
  if (sharing_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the training program has no parameter of this name and region ", ToString(shard.type())));
  }
  if (stored) return absl::OkStatus();
  // New memory is zero, and uses no physical pages until touched.
  if (buffer.literal().empty() && buffer.initializer().kind() == v1::Initializer::ZEROS) {
    return absl::OkStatus();
  }
  std::vector<char> passing;
  char* host = data(i);
  if (IsStreamed(i)) {
    absl::StatusOr<char*> slot = LoadIntoSlot(i);
    if (!slot.ok()) return slot.status();
    host = *slot;
  } else if (!device_->is_host()) {
    passing.resize(static_cast<size_t>(bytes(i)));
    host = passing.data();
  }
  if (buffer.literal().empty()) {
    absl::Status made =
        Initialize(buffer.initializer(), checked_->tensor_names[i], program_->seed(), shard, host);
    if (!made.ok()) return made;
  } else {
    CopyBoxOnHost({buffer.literal().data(), host, shard.dtype, shard.global, shard.dims,
                   shard.offset, Dims(shard.dims.size(), 0), shard.dims, false});
  }
  return passing.empty() ? absl::OkStatus() : device_->CopyToDevice(data(i), host, bytes(i));
}

}  // namespace espalier
