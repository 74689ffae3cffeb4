#include "worker/runner/program_model_runner.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

constexpr const char* kInputNames[] = {"tokens",         "positions",      "slots",
                                       "row_sequence",   "row_prefix",     "ancestor_start",
                                       "ancestor_slots", "sequence_start", "sequence_slots",
                                       "logit_rows",     "row_adapter"};

absl::Status Bad(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("batch: ", what));
}

absl::Status CheckRange(const std::vector<int32_t>& values, const char* name, int begin, int end) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] < begin || values[i] >= end) {
      return Bad(
          absl::StrCat(name, "[", i, "] is ", values[i], "; accepted: [", begin, ", ", end, ")"));
    }
  }
  return absl::OkStatus();
}

// Offsets: count + 1 of them, from 0, never falling, the last one `total`.
absl::Status CheckOffsets(const std::vector<int32_t>& offsets, const char* name, size_t count,
                          size_t total) {
  if (offsets.size() != count + 1) {
    return Bad(absl::StrCat(name, " has ", offsets.size(), " entries; ", count + 1, " are needed"));
  }
  if (offsets.front() != 0 || offsets.back() != static_cast<int32_t>(total) ||
      !std::is_sorted(offsets.begin(), offsets.end())) {
    return Bad(absl::StrCat(name, " must rise from 0 to ", total));
  }
  return absl::OkStatus();
}

absl::Status CheckCount(size_t count, const char* name, int limit) {
  if (count <= static_cast<size_t>(limit)) return absl::OkStatus();
  return Bad(absl::StrCat(name, " has ", count, " entries; at most ", limit));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProgramModelRunner>> ProgramModelRunner::Create(
    const proto::Program& program, const std::string& folder, int max_positions, Device* device,
    const WeightMap& weights) {
  ExecutorOptions options;
  options.device = device;
  options.training = false;
  absl::StatusOr<std::unique_ptr<Executor>> executor = Executor::Create(program, options);
  if (!executor.ok()) return executor.status();
  std::unique_ptr<ProgramModelRunner> runner(new ProgramModelRunner());
  runner->executor_ = *std::move(executor);
  runner->limits_.max_positions = max_positions;
  if (absl::Status s = runner->FindBuffers(); !s.ok()) return s;
  if (!folder.empty()) {
    if (absl::Status s = LoadWeights(folder, weights, *runner->executor_); !s.ok()) return s;
  }
  return runner;
}

absl::Status ProgramModelRunner::FindBuffers() {
  const proto::Program& program = executor_->program();
  for (int input = 0; input < kNumInputs; ++input) {
    const int buffer = executor_->FindBuffer(kInputNames[input]);
    inputs_[input] = buffer;
    // A model with ALiBi has no use for positions, one without adapters none for these.
    if (buffer < 0 && (input == kPositions || input == kRowAdapter)) continue;
    if (buffer < 0 || executor_->buffer(buffer).kind() != proto::HOST_INPUT ||
        executor_->spec(buffer).dtype != DType::kI32 || executor_->spec(buffer).dims.size() != 1) {
      return absl::InvalidArgumentError(absl::StrCat("the serving program '", program.name(),
                                                     "' has no i32 vector input '",
                                                     kInputNames[input], "'"));
    }
  }
  auto size = [&](Input input) {
    return static_cast<int>(executor_->spec(inputs_[input]).dims[0]);
  };
  limits_.max_rows = size(kTokens);
  limits_.max_sequences = size(kSequenceStart) - 1;
  limits_.max_context_slots = size(kSequenceSlots);
  limits_.max_ancestor_slots = size(kAncestorSlots);
  max_output_rows_ = size(kLogitRows);
  for (Input input : {kPositions, kSlots, kRowSequence, kRowPrefix, kRowAdapter}) {
    if (inputs_[input] >= 0 && size(input) != limits_.max_rows) {
      return absl::InvalidArgumentError(absl::StrCat("input '", kInputNames[input], "' has ",
                                                     size(input), " rows, 'tokens' has ",
                                                     limits_.max_rows));
    }
  }
  if (size(kAncestorStart) != limits_.max_rows + 1) {
    return absl::InvalidArgumentError(
        "input 'ancestor_start' must have one entry more than 'tokens'");
  }
  limits_.kv_slots = 0;
  for (int i = 0; i < executor_->num_buffers(); ++i) {
    if (executor_->buffer(i).kind() != proto::PERSISTENT) continue;
    const int slots = static_cast<int>(executor_->spec(i).dims[0]);
    limits_.kv_slots = limits_.kv_slots == 0 ? slots : std::min(limits_.kv_slots, slots);
  }
  auto found = program.outputs().find("logits");
  if (found == program.outputs().end()) {
    return absl::InvalidArgumentError("the serving program has no output 'logits'");
  }
  logits_ = found->second;
  const TensorSpec& spec = executor_->spec(logits_);
  if (spec.dtype != DType::kF32 || spec.dims.size() != 2 || spec.dims[0] < max_output_rows_) {
    return absl::InvalidArgumentError(absl::StrCat("output 'logits' is ", ToString(spec.type()),
                                                   "; it must be f32 [output rows, "
                                                   "vocabulary]"));
  }
  limits_.vocabulary = static_cast<int>(spec.dims[1]);
  for (const proto::Instruction& instruction : program.instructions()) {
    if (!instruction.has_compute() || instruction.compute().op() != "lora_linear") continue;
    limits_.adapters = static_cast<int>(executor_->spec(instruction.compute().inputs(1)).dims[0]);
    break;
  }
  return FindHidden();
}

absl::Status ProgramModelRunner::FindHidden() {
  const auto& outputs = executor_->program().outputs();
  const auto found = outputs.find("hidden");
  if (found == outputs.end()) return absl::OkStatus();
  const TensorSpec& spec = executor_->spec(found->second);
  if (spec.dtype != DType::kF32 || spec.dims.size() != 2 || spec.dims[0] < max_output_rows_) {
    return absl::InvalidArgumentError(absl::StrCat("output 'hidden' is ", ToString(spec.type()),
                                                   "; it must be f32 [output rows, size]"));
  }
  hidden_ = found->second;
  limits_.hidden = static_cast<int>(spec.dims[1]);
  return absl::OkStatus();
}

int64_t ProgramModelRunner::kv_cache_bytes() const {
  int64_t bytes = 0;
  for (int i = 0; i < executor_->num_buffers(); ++i) {
    if (executor_->buffer(i).kind() == proto::PERSISTENT) bytes += executor_->spec(i).bytes();
  }
  return bytes;
}

absl::Status ProgramModelRunner::Check(const RunnerBatch& batch) const {
  const size_t rows = batch.tokens.size();
  const size_t sequences = batch.sequence_start.empty() ? 0 : batch.sequence_start.size() - 1;
  if (rows == 0) return Bad("it has no rows");
  for (const auto& [values, name] :
       {std::pair{&batch.positions, "positions"}, std::pair{&batch.slots, "slots"},
        std::pair{&batch.row_sequence, "row_sequence"},
        std::pair{&batch.row_prefix, "row_prefix"}}) {
    if (values->size() != rows) {
      return Bad(absl::StrCat(name, " has ", values->size(), " entries for ", rows, " tokens"));
    }
  }
  if (!batch.row_adapter.empty() && batch.row_adapter.size() != rows) {
    return Bad(absl::StrCat("row_adapter has ", batch.row_adapter.size(), " entries for ", rows,
                            " tokens"));
  }
  if (batch.wants_hidden && hidden_ < 0) return Bad("the program keeps no hidden states");
  const absl::Status checks[] = {
      CheckCount(rows, "tokens", limits_.max_rows),
      CheckCount(sequences, "sequences", limits_.max_sequences),
      CheckCount(batch.sequence_slots.size(), "sequence_slots", limits_.max_context_slots),
      CheckCount(batch.ancestor_slots.size(), "ancestor_slots", limits_.max_ancestor_slots),
      CheckCount(batch.logit_rows.size(), "logit_rows", max_output_rows_),
      CheckOffsets(batch.ancestor_start, "ancestor_start", rows, batch.ancestor_slots.size()),
      CheckOffsets(batch.sequence_start, "sequence_start", sequences, batch.sequence_slots.size()),
      CheckRange(batch.tokens, "tokens", 0, limits_.vocabulary),
      CheckRange(batch.positions, "positions", 0, limits_.max_positions),
      CheckRange(batch.slots, "slots", 0, limits_.kv_slots),
      CheckRange(batch.ancestor_slots, "ancestor_slots", 0, limits_.kv_slots),
      CheckRange(batch.sequence_slots, "sequence_slots", 0, limits_.kv_slots),
      CheckRange(batch.row_sequence, "row_sequence", 0, static_cast<int>(sequences)),
      CheckRange(batch.logit_rows, "logit_rows", 0, static_cast<int>(rows)),
      CheckRange(batch.row_adapter, "row_adapter", -1, limits_.adapters),
  };
  for (const absl::Status& status : checks) {
    if (!status.ok()) return status;
  }
  for (size_t r = 0; r < rows; ++r) {
    const int sequence = batch.row_sequence[r];
    const int length = batch.sequence_start[sequence + 1] - batch.sequence_start[sequence];
    const int ancestors = batch.ancestor_start[r + 1] - batch.ancestor_start[r];
    if (batch.row_prefix[r] < 0 || batch.row_prefix[r] > length) {
      return Bad(absl::StrCat("row_prefix[", r, "] is ", batch.row_prefix[r], "; sequence ",
                              sequence, " has ", length, " slots"));
    }
    const int32_t last =
        ancestors > 0 ? batch.ancestor_slots[batch.ancestor_start[r + 1] - 1]
        : batch.row_prefix[r] > 0
            ? batch.sequence_slots[batch.sequence_start[sequence] + batch.row_prefix[r] - 1]
            : -1;
    if (last != batch.slots[r]) {
      return Bad(absl::StrCat("row ", r, " does not see its own slot ", batch.slots[r], " last"));
    }
  }
  std::vector<int32_t> slots = batch.slots;
  std::sort(slots.begin(), slots.end());
  auto twice = std::adjacent_find(slots.begin(), slots.end());
  if (twice != slots.end()) return Bad(absl::StrCat("two rows write slot ", *twice));
  if (std::adjacent_find(batch.logit_rows.begin(), batch.logit_rows.end(),
                         std::greater_equal<>()) != batch.logit_rows.end()) {
    return Bad("logit_rows must ascend");
  }
  return absl::OkStatus();
}

absl::Status ProgramModelRunner::Step(const RunnerBatch& batch, RunnerLogits* logits) {
  if (absl::Status s = Check(batch); !s.ok()) return s;
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
  const auto read = [&](int buffer, int columns, std::vector<float>* to) {
    to->resize(batch.logit_rows.size() * static_cast<size_t>(columns));
    if (to->empty()) return absl::OkStatus();
    return executor_->ReadBuffer(buffer, to->data(),
                                 static_cast<int64_t>(to->size() * sizeof(float)));
  };
  absl::Status status = read(logits_, limits_.vocabulary, &logits->values);
  if (status.ok() && batch.wants_hidden) status = read(hidden_, limits_.hidden, &logits->hidden);
  return status;
}

}  // namespace espalier
