#include "worker/executor/program_memory.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "worker/executor/initialize.h"

namespace espalier {
namespace {

bool IsKept(const proto::Buffer& buffer) {
  return buffer.kind() != proto::SCRATCH && buffer.kind() != proto::HOST_INPUT &&
         buffer.kind() != proto::SCHEDULE;
}

}  // namespace

absl::Status ProgramMemory::Place(const proto::Program& program, const CheckedProgram& checked,
                                  Device* device, const ProgramMemory* shared) {
  program_ = &program;
  checked_ = &checked;
  device_ = device;
  sharing_ = shared != nullptr;
  for (int64_t bytes : checked.host_slot_bytes) {
    absl::StatusOr<std::unique_ptr<HostMemory>> slot = device->AllocateHost(bytes);
    if (!slot.ok()) return slot.status();
    host_slots_.push_back(*std::move(slot));
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

char* ProgramMemory::FindParameter(int buffer, const ProgramMemory& other) const {
  if (program_->buffers(buffer).kind() != proto::PARAMETER_SHARD || home(buffer) != nullptr) {
    return nullptr;
  }
  const int original = checked_->alias_of[buffer] < 0 ? buffer : checked_->alias_of[buffer];
  for (int j = 0; j < other.program_->buffers_size(); ++j) {
    if (other.program_->buffers(j).kind() == proto::PARAMETER_SHARD &&
        other.checked_->alias_of[j] < 0 && other.home(j) == nullptr &&
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
    const proto::Buffer& ours = program_->buffers(i);
    const int64_t begin = ours.offset_bytes(), end = begin + bytes(i);
    // What we keep must be what the other keeps there: a literal of both.
    bool found = !IsKept(ours);
    for (int j = 0; j < other.program_->buffers_size(); ++j) {
      const proto::Buffer& theirs = other.program_->buffers(j);
      if (!IsKept(theirs)) continue;
      if (ours.kind() == proto::LITERAL && theirs.kind() == proto::LITERAL &&
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

absl::Status ProgramMemory::FillAtStart() const {
  for (int i = 0; i < program_->buffers_size(); ++i) {
    if (absl::Status s = FillBuffer(i); !s.ok()) {
      return absl::Status(s.code(), absl::StrCat("buffer ", i, " ('", program_->buffers(i).name(),
                                                 "'): ", std::string(s.message())));
    }
  }
  return absl::OkStatus();
}

absl::Status ProgramMemory::FillBuffer(int i) const {
  const proto::Buffer& buffer = program_->buffers(i);
  const TensorSpec& shard = checked_->specs[i];
  if (shared_[i] != nullptr || checked_->alias_of[i] >= 0) return absl::OkStatus();
  if (buffer.kind() == proto::LITERAL) {
    return device_->CopyToDevice(data(i), buffer.literal().data(), bytes(i));
  }
  if (buffer.kind() != proto::PARAMETER_SHARD) return absl::OkStatus();
  if (sharing_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the training program has no parameter of this name and region ", ToString(shard.type())));
  }
  std::vector<char> passing(home(i) == nullptr ? static_cast<size_t>(bytes(i)) : 0);
  char* const host = home(i) == nullptr ? passing.data() : home(i);
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
