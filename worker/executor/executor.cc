#include "worker/executor/executor.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/executor/executor_state.h"

namespace espalier {

Executor::Executor(std::unique_ptr<State> state) : state_(std::move(state)) {}
Executor::~Executor() = default;

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(const v1::Program& program,
                                                           const ExecutorOptions& options) {
  if (options.device == nullptr) return absl::InvalidArgumentError("an executor needs a device");
  absl::StatusOr<CheckedProgram> checked = CheckProgram(program);
  if (!checked.ok()) return checked.status();
  auto state = std::make_unique<State>(program, options, *std::move(checked));
  try {
    if (absl::Status s = state->Prepare(); !s.ok()) return s;
  } catch (const std::exception& e) {
    return absl::ResourceExhaustedError(
        absl::StrCat("program '", program.name(), "' could not be loaded: ", e.what()));
  }
  return std::unique_ptr<Executor>(new Executor(std::move(state)));
}

void Executor::SetCommunicator(Communicator* communicator) {
  state_->options().communicator = communicator;
}

absl::StatusOr<StepResult> Executor::Step(int64_t step, bool profile, const DynamicSizes& sizes) {
  try {
    return state_->Step(step, profile, sizes);
  } catch (const std::exception& e) {
    return absl::ResourceExhaustedError(absl::StrCat("step ", step, ": ", e.what()));
  }
}

absl::Status Executor::ReadDuringSteps(std::vector<BufferRead> reads, OnBufferRead on_read) {
  return state_->ReadDuringSteps(std::move(reads), std::move(on_read));
}

absl::StatusOr<StepResult> Executor::RunPart(int begin, int end, const PassOptions& options) {
  try {
    return state_->RunPart(begin, end, options);
  } catch (const std::exception& e) {
    return absl::ResourceExhaustedError(
        absl::StrCat("instructions ", begin, " to ", end, ": ", e.what()));
  }
}

int Executor::num_buffers() const { return state_->program().buffers_size(); }
const v1::Buffer& Executor::buffer(int index) const { return state_->program().buffers(index); }
const TensorSpec& Executor::spec(int index) const { return state_->spec(index); }

const std::string& Executor::tensor_name(int index) const { return state_->tensor_name(index); }
bool Executor::is_alias(int index) const { return state_->is_alias(index); }

int Executor::FindBuffer(const std::string& name) const {
  for (int i = 0; i < num_buffers(); ++i) {
    if (buffer(i).name() == name) return i;
  }
  return -1;
}

absl::Status Executor::ReadBuffer(int index, void* host, int64_t bytes) {
  if (index < 0 || index >= num_buffers() || bytes < 0 || bytes > state_->bytes(index)) {
    return absl::InvalidArgumentError(
        absl::StrCat("no ", bytes, " bytes to read in buffer ", index));
  }
  if (!state_->files(index).empty()) return ReadRanges(state_->files(index), bytes, host);
  if (state_->IsStreamed(index)) {
    absl::StatusOr<char*> home = state_->StreamedData(index);
    if (!home.ok()) return home.status();
    std::copy_n(*home, bytes, static_cast<char*>(host));
    return absl::OkStatus();
  }
  return state_->options().device->CopyToHost(host, state_->data(index), bytes);
}

absl::Status Executor::WriteBuffer(int index, const void* host, int64_t bytes, int64_t offset) {
  if (index < 0 || index >= num_buffers() || bytes < 0 || offset < 0 ||
      offset > state_->bytes(index) || bytes > state_->bytes(index) - offset) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot write ", bytes, " bytes at ", offset, " in buffer ", index));
  }
  if (state_->IsStreamed(index)) {
    absl::StatusOr<char*> home = state_->StreamedData(index);
    if (!home.ok()) return home.status();
    std::copy_n(static_cast<const char*>(host), bytes, *home + offset);
    return absl::OkStatus();
  }
  return state_->options().device->CopyToDevice(state_->data(index) + offset, host, bytes);
}

uint8_t* Executor::HostData(int index) {
  if (index < 0 || index >= num_buffers()) return nullptr;
  char* data = nullptr;
  if (state_->IsStreamed(index)) {
    absl::StatusOr<char*> home = state_->StreamedData(index);
    if (home.ok()) data = *home;
  } else if (state_->options().device->is_host()) {
    data = state_->data(index);
  }
  return reinterpret_cast<uint8_t*>(data);
}

bool Executor::CanBeFileBacked(int index) const {
  return index >= 0 && index < num_buffers() && state_->IsStreamed(index) &&
         state_->options().device->is_host();
}

absl::Status Executor::SetBackingFiles(int index, std::vector<FileRange> runs) {
  if (!CanBeFileBacked(index)) {
    return absl::InvalidArgumentError(
        absl::StrCat("buffer ", index, " is no parameter that could stream from files"));
  }
  int64_t bytes = 0;
  for (const FileRange& run : runs) bytes += run.bytes;
  if (bytes != state_->bytes(index)) {
    return absl::InvalidArgumentError(absl::StrCat("files with ", bytes, " bytes for buffer ",
                                                   index, " of ", state_->bytes(index)));
  }
  state_->SetBackingFiles(index, std::move(runs));
  return absl::OkStatus();
}

const v1::Program& Executor::program() const { return state_->program(); }
int64_t Executor::measured_peak_bytes() const { return state_->measured_peak_bytes(); }

}  // namespace espalier
