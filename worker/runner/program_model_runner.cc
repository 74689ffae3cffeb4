#include "worker/runner/program_model_runner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/runner/check_batch.h"
#include "worker/runner/sample_rows_on_threads.h"

namespace espalier {
namespace {

constexpr const char* kInputNames[] = {"tokens",         "positions",      "slots",
                                       "row_sequence",   "row_prefix",     "ancestor_start",
                                       "ancestor_slots", "sequence_start", "sequence_slots",
                                       "logit_rows",     "row_adapter"};

// Checks the exact length of an input that the program reads.
absl::Status CheckInput(const Executor& executor, int buffer, const char* name, int64_t length) {
  if (buffer < 0) return absl::OkStatus();
  const TensorSpec& spec = executor.spec(buffer);
  if (executor.buffer(buffer).kind() == v1::HOST_INPUT && spec.dtype == DType::kI32 &&
      spec.dims == Dims{length}) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("the serving program's '", name, "' is ",
                                                 ToString(spec.type()),
                                                 "; it must be an input i32[", length, "]"));
}

// Hidden states that the program outputs.
int CacheSlots(const Executor& executor) {
  int64_t slots = 0;
  for (int i = 0; i < executor.num_buffers(); ++i) {
    if (executor.buffer(i).kind() != v1::PERSISTENT) continue;
    const int64_t here = executor.spec(i).dims[0];
    slots = slots == 0 ? here : std::min(slots, here);
  }
  return static_cast<int>(slots);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProgramModelRunner>> ProgramModelRunner::Make(
    const v1::Program& program, Device* device) {
  ExecutorOptions options;
  options.device = device;
  options.training = false;
  absl::StatusOr<std::unique_ptr<Executor>> executor = Executor::Create(program, options);
  if (!executor.ok()) return executor.status();
  std::unique_ptr<ProgramModelRunner> runner(new ProgramModelRunner());
  runner->executor_ = *std::move(executor);
  for (int input = 0; input < kNumInputs; ++input) {
    runner->inputs_[input] = runner->executor_->FindBuffer(kInputNames[input]);
  }
  if (auto found = program.outputs().find("logits"); found != program.outputs().end()) {
    runner->logits_ = found->second;
  }
  return runner;
}

absl::StatusOr<std::unique_ptr<ProgramModelRunner>> ProgramModelRunner::Create(
    const v1::Program& program, const std::string& folder, int max_positions, Device* device,
    const WeightMap& weights, const WeightLoadOptions& loading) {
  absl::StatusOr<std::unique_ptr<ProgramModelRunner>> made = Make(program, device);
  if (!made.ok()) return made.status();
  std::unique_ptr<ProgramModelRunner> runner = *std::move(made);
  runner->limits_.max_positions = max_positions;
  if (absl::Status s = runner->TakeLimits(); !s.ok()) return s;
  if (absl::Status s = runner->CheckBuffers(); !s.ok()) return s;
  if (!folder.empty()) {
    absl::Status s = LoadWeights(folder, weights, *runner->executor_, loading);
    if (!s.ok()) return s;
  }
  return runner;
}

absl::StatusOr<std::unique_ptr<ProgramModelRunner>> ProgramModelRunner::CreateRank(
    const v1::Program& program, const std::string& folder, const RunnerLimits& limits,
    int max_output_rows, Device* device, const WeightMap& weights,
    const WeightLoadOptions& loading) {
  absl::StatusOr<std::unique_ptr<ProgramModelRunner>> made;
  const absl::Status status = loading.Turn([&] {
    made = Make(program, device);
    return made.status();
  });
  if (!status.ok()) return status;
  std::unique_ptr<ProgramModelRunner> runner = *std::move(made);
  runner->limits_ = limits;
  runner->max_output_rows_ = max_output_rows;
  if (absl::Status s = runner->CheckBuffers(); !s.ok()) return s;
  if (absl::Status s = runner->FindHidden(); !s.ok()) return s;
  if (runner->has_logits() && limits.hidden > 0 && runner->hidden_ < 0) {
    return absl::InvalidArgumentError(absl::StrCat("hidden states of ", limits.hidden,
                                                   " numbers are promised, but the program with "
                                                   "the logits has no output 'hidden'"));
  }
  if (!folder.empty()) {
    absl::Status s = LoadWeights(folder, weights, *runner->executor_, loading);
    if (!s.ok()) return s;
  }
  return runner;
}

absl::Status ProgramModelRunner::TakeLimits() {
  const std::string& name = executor_->program().name();
  for (int input = 0; input < kNumInputs; ++input) {
    // Models with ALiBi do not use positions; models without adapters do not use adapter ids.
    if (inputs_[input] < 0 && (input == kPositions || input == kRowAdapter)) continue;
    if (inputs_[input] < 0 || executor_->spec(inputs_[input]).dims.size() != 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the serving program '", name, "' has no i32 vector input '", kInputNames[input], "'"));
    }
  }
  if (logits_ < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the serving program '", name, "' has no output 'logits'"));
  }
  const auto size = [&](Input input) {
    return static_cast<int>(executor_->spec(inputs_[input]).dims[0]);
  };
  limits_.max_rows = size(kTokens);
  limits_.max_sequences = size(kSequenceStart) - 1;
  limits_.max_context_slots = size(kSequenceSlots);
  limits_.max_ancestor_slots = size(kAncestorSlots);
  limits_.kv_slots = CacheSlots(*executor_);
  max_output_rows_ = size(kLogitRows);
  const TensorSpec& logits = executor_->spec(logits_);
  limits_.vocabulary = logits.dims.size() == 2 ? static_cast<int>(logits.dims[1]) : 0;
  for (const v1::Instruction& instruction : executor_->program().instructions()) {
    if (!instruction.has_compute() || instruction.compute().op() != "lora_linear") continue;
    limits_.adapters = static_cast<int>(executor_->spec(instruction.compute().inputs(1)).dims[0]);
    break;
  }
  const auto hidden = executor_->program().outputs().find("hidden");
  if (hidden != executor_->program().outputs().end()) {
    const Dims& dims = executor_->spec(hidden->second).dims;
    limits_.hidden = dims.empty() ? 0 : static_cast<int>(dims.back());
  }
  return FindHidden();
}

absl::Status ProgramModelRunner::FindHidden() {
  const auto& outputs = executor_->program().outputs();
  const auto found = outputs.find("hidden");
  if (found == outputs.end()) return absl::OkStatus();
  const TensorSpec& spec = executor_->spec(found->second);
  // If the limits announce no hidden states, the output is ignored.
  if (limits_.hidden == 0) return absl::OkStatus();
  if (spec.dtype != DType::kF32 || spec.dims.size() != 2 || spec.dims[0] < max_output_rows_ ||
      spec.dims[1] != limits_.hidden) {
    return absl::InvalidArgumentError(absl::StrCat("output 'hidden' is ", ToString(spec.type()),
                                                   "; it must be f32 [", max_output_rows_,
                                                   " output rows, ", limits_.hidden, "]"));
  }
  hidden_ = found->second;
  return absl::OkStatus();
}

absl::Status ProgramModelRunner::CheckBuffers() const {
  const struct {
    Input input;
    int64_t length;
  } lengths[] = {{kTokens, limits_.max_rows},
                 {kPositions, limits_.max_rows},
                 {kSlots, limits_.max_rows},
                 {kRowSequence, limits_.max_rows},
                 {kRowPrefix, limits_.max_rows},
                 {kRowAdapter, limits_.max_rows},
                 {kAncestorStart, int64_t{limits_.max_rows} + 1},
                 {kAncestorSlots, limits_.max_ancestor_slots},
                 {kSequenceStart, int64_t{limits_.max_sequences} + 1},
                 {kSequenceSlots, limits_.max_context_slots},
                 {kLogitRows, max_output_rows_}};
  for (const auto& [input, length] : lengths) {
    absl::Status s = CheckInput(*executor_, inputs_[input], kInputNames[input], length);
    if (!s.ok()) return s;
  }
  if (const int slots = CacheSlots(*executor_); slots != 0 && slots < limits_.kv_slots) {
    return absl::InvalidArgumentError(absl::StrCat("the serving program's cache has ", slots,
                                                   " slots; ", limits_.kv_slots, " are needed"));
  }
  if (logits_ < 0) return absl::OkStatus();
  const TensorSpec& spec = executor_->spec(logits_);
  if (spec.dtype != DType::kF32 || spec.dims.size() != 2 || spec.dims[0] < max_output_rows_ ||
      spec.dims[1] != limits_.vocabulary) {
    return absl::InvalidArgumentError(absl::StrCat(
        "output 'logits' is ", ToString(spec.type()), "; it must be f32 [", max_output_rows_,
        " output rows, ", limits_.vocabulary, " of the vocabulary]"));
  }
  return absl::OkStatus();
}

int64_t ProgramModelRunner::kv_cache_bytes() const {
  int64_t bytes = 0;
  for (int i = 0; i < executor_->num_buffers(); ++i) {
    if (executor_->buffer(i).kind() == v1::PERSISTENT) bytes += executor_->spec(i).bytes();
  }
  return bytes;
}

absl::Status ProgramModelRunner::Check(const RunnerBatch& batch) const {
  // Checks against the whole model's limits, so that all ranks agree.
  if (batch.wants_hidden && limits_.hidden == 0) {
    return absl::InvalidArgumentError("batch: the program keeps no hidden states");
  }
  return CheckBatch(batch, limits_, max_output_rows_);
}

absl::Status ProgramModelRunner::Step(const RunnerBatch& batch, RunnerOutput* logits) {
  const absl::Status refused = Check(batch);
  return refused.ok() ? StepChecked(batch, logits) : refused;
}

absl::Status ProgramModelRunner::StepChecked(const RunnerBatch& batch, RunnerOutput* logits) {
  const std::vector<int32_t> no_adapters(batch.row_adapter.empty() ? batch.tokens.size() : 0, -1);
  const std::vector<int32_t>* values[kNumInputs] = {
      &batch.tokens,
      &batch.positions,
      &batch.slots,
      &batch.row_sequence,
      &batch.row_prefix,
      &batch.ancestor_start,
      &batch.ancestor_slots,
      &batch.sequence_start,
      &batch.sequence_slots,
      &batch.logit_rows,
      batch.row_adapter.empty() ? &no_adapters : &batch.row_adapter};
  for (int input = 0; input < kNumInputs; ++input) {
    if (inputs_[input] < 0) continue;
    absl::Status s =
        executor_->WriteBuffer(inputs_[input], values[input]->data(),
                               static_cast<int64_t>(values[input]->size() * sizeof(int32_t)));
    if (!s.ok()) return s;
  }
  const DynamicSizes sizes{batch.rows(), static_cast<int64_t>(batch.logit_rows.size())};
  absl::StatusOr<StepResult> result = executor_->Step(0, /*profile=*/false, sizes);
  if (!result.ok()) return result.status();
  logits->vocabulary = limits_.vocabulary;
  logits->choices.clear();
  logits->logprobs.clear();
  const auto read = [&](int buffer, int columns, std::vector<float>* to) {
    to->resize(buffer < 0 ? 0 : batch.logit_rows.size() * static_cast<size_t>(columns));
    if (to->empty()) return absl::OkStatus();
    return executor_->ReadBuffer(buffer, to->data(),
                                 static_cast<int64_t>(to->size() * sizeof(float)));
  };
  absl::Status status = read(logits_, limits_.vocabulary, &logits->values);
  logits->hidden.clear();
  if (status.ok() && batch.wants_hidden) status = read(hidden_, limits_.hidden, &logits->hidden);
  if (!status.ok() || logits_ < 0) return status;
  SampleRowsOnThreads(batch, logits);
  return absl::OkStatus();
}

}  // namespace espalier
