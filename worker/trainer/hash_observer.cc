#include "worker/trainer/hash_observer.h"

#include <cstring>
#include <utility>

#include "base/sha256.h"
#include "ops/program/buffer_accesses.h"
#include "worker/executor/check_program.h"

namespace espalier {
namespace {

constexpr int kMaxHashEntries = 10000;  // of an event

uint64_t HashOf(const TensorView& values) {
  Sha256 hash;
  hash.Add(values.data, values.spec.bytes());
  return std::stoull(hash.Hex().substr(0, 16), nullptr, 16);
}

}  // namespace

absl::Status HashObserver::OnStepBegin(TrainingRun&, int64_t step, bool*) {
  if (step != step_) return absl::OkStatus();
  const v1::Program& program = executor_->program();
  std::vector<BufferRead> reads;
  hashes_.Clear();
  hashes_.set_step(step);
  for (int i = 0; i < program.instructions_size(); ++i) {
    const v1::Instruction& instruction = program.instructions(i);
    // Swaps are copies, and may still be under way.
    if (instruction.has_swap_in() || instruction.has_swap_out()) continue;
    for (const BufferAccess& access : AccessesOf(instruction)) {
      if (!access.writes) continue;
      reads.push_back({i + 1, access.buffer});
      v1::InstructionHashes::Entry* entry = hashes_.add_entries();
      entry->set_instruction(i);
      entry->set_node(instruction.node());
      entry->set_op(OpName(instruction));
      entry->set_tensor(executor_->tensor_name(access.buffer));
    }
  }
  return executor_->ReadDuringSteps(std::move(reads), [this](int read, const TensorView& values) {
    hashes_.mutable_entries(read)->set_hash(HashOf(values));
    return absl::OkStatus();
  });
}

absl::Status HashObserver::OnStepReported(TrainingRun& run, int64_t step, const StepReports&) {
  if (step != step_) return absl::OkStatus();
  if (absl::Status s = executor_->ReadDuringSteps({}, nullptr); !s.ok()) return s;
  for (int begin = 0; begin < hashes_.entries_size(); begin += kMaxHashEntries) {
    v1::RunEvent event;
    v1::InstructionHashes* part = event.mutable_hashes();
    part->set_step(step);
    const int end = std::min(begin + kMaxHashEntries, hashes_.entries_size());
    for (int i = begin; i < end; ++i) *part->add_entries() = hashes_.entries(i);
    if (absl::Status s = run.Emit(event); !s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace espalier
