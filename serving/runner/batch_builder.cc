#include "serving/runner/batch_builder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "serving/runner/row_outputs.h"

namespace espalier {

std::shared_ptr<const SequenceLogitEdits> SequenceEditsOf(const LogitsProcessor& rules) {
  return rules.active() ? std::make_shared<const SequenceLogitEdits>(rules.Edits()) : nullptr;
}

void AddRowEdits(const LogitsProcessor& rules, absl::Span<const int> path, SequenceRows::Row* row) {
  if (row->row_output == RunnerBatch::kLogits || !rules.active()) return;
  absl::StatusOr<RowLogitEdits> edits = rules.EditsAfter(path);
  if (edits.ok()) {
    row->edits = *std::move(edits);
  } else {
    row->row_output = RunnerBatch::kLogits;
  }
}

// One batch under construction. Sequences list only the slots that their rows in this batch attend
// to.
class BatchPipeline::Builder {
 public:
  explicit Builder(const RunnerLimits& limits) : limits_(limits) { Clear(); }

  bool empty() const { return rows_.rows() == 0; }

  bool Fits(int sequence, const SequenceRows::Row& row) const {
    const bool joins = sequence == last_sequence_;
    const int longer = std::max(0, row.prefix - (joins ? last_prefix_ : 0));
    return rows_.rows() < limits_.max_rows &&
           sequences_ + (joins ? 0 : 1) <= limits_.max_sequences &&
           context_slots_ + longer <= limits_.max_context_slots &&
           static_cast<int>(rows_.ancestor_slots.size() + row.ancestors.size()) <=
               limits_.max_ancestor_slots;
  }

  void Add(int sequence, const SequenceRows& of, const SequenceRows::Row& row) {
    if (sequence != last_sequence_) {
      CloseSequence();
      last_sequence_ = sequence;
      last_prefix_ = 0;
      ++sequences_;
      rows_.sequence_sampling.push_back(of.metadata);
      has_metadata_ = has_metadata_ || !of.metadata.plain();
    }
    context_slots_ += std::max(0, row.prefix - last_prefix_);
    last_prefix_ = std::max(last_prefix_, static_cast<int>(row.prefix));
    last_slots_ = of.slots;
    if (row.wants_logits) {
      rows_.logit_rows.push_back(rows_.rows());
      rows_.wants_hidden = rows_.wants_hidden || row.wants_hidden;
      rows_.row_outputs.push_back(row.row_output);
      rows_.next_prompt_tokens.push_back(row.next_prompt_tokens);
      rows_.row_edits.push_back(row.edits);
      sampled_ = sampled_ || row.row_output != RunnerBatch::kLogits;
      prompt_logprobs_ = prompt_logprobs_ || row.row_output == RunnerBatch::kPromptLogprob;
      edits_ = edits_ || of.metadata.edits != nullptr;
      wanted_.push_back({sequence, row.wants_hidden});
    }
    if (limits_.adapters > 0) rows_.row_adapter.push_back(of.adapter);
    rows_.tokens.push_back(row.token);
    rows_.positions.push_back(row.position);
    rows_.slots.push_back(row.slot);
    rows_.row_sequence.push_back(sequences_ - 1);
    rows_.row_prefix.push_back(row.prefix);
    rows_.ancestor_slots.insert(rows_.ancestor_slots.end(), row.ancestors.begin(),
                                row.ancestors.end());
    rows_.ancestor_start.push_back(static_cast<int32_t>(rows_.ancestor_slots.size()));
  }

  // Returns the batch and starts an empty one.
  Batch Take() {
    CloseSequence();
    if (!sampled_) rows_.row_outputs.clear();
    if (!sampled_ || !has_metadata_) rows_.sequence_sampling.clear();
    if (!prompt_logprobs_) rows_.next_prompt_tokens.clear();
    if (!sampled_ || !edits_) rows_.row_edits.clear();
    Batch out = {std::move(rows_), std::move(wanted_)};
    Clear();
    return out;
  }

 private:
  void Clear() {
    rows_ = RunnerBatch();
    rows_.ancestor_start.push_back(0);
    rows_.sequence_start.push_back(0);
    wanted_.clear();
    sequences_ = 0;
    context_slots_ = 0;
    last_sequence_ = -1;
    last_prefix_ = 0;
    last_slots_ = {};
    sampled_ = has_metadata_ = prompt_logprobs_ = edits_ = false;
  }

  void CloseSequence() {
    if (last_sequence_ < 0) return;
    rows_.sequence_slots.insert(rows_.sequence_slots.end(), last_slots_.begin(),
                                last_slots_.begin() + last_prefix_);
    rows_.sequence_start.push_back(static_cast<int32_t>(rows_.sequence_slots.size()));
    last_sequence_ = -1;
  }

  RunnerLimits limits_;
  RunnerBatch rows_;
  std::vector<Batch::Wanted> wanted_;
  int sequences_ = 0;
  int context_slots_ = 0;
  int last_sequence_ = -1;
  int last_prefix_ = 0;
  absl::Span<const int32_t> last_slots_;
  // Whether any row requests anything but all logits, needs metadata beyond plain greedy, requests
  // prompt log-probabilities, or has edits.
  bool sampled_ = false, has_metadata_ = false, prompt_logprobs_ = false, edits_ = false;
};

namespace {

absl::Status CheckShape(const RunnerOutput& logits, const RunnerBatch& batch,
                        const RunnerLimits& limits) {
  const size_t hidden =
      batch.wants_hidden ? batch.logit_rows.size() * static_cast<size_t>(limits.hidden) : 0;
  if (batch.wants_hidden && logits.hidden.size() != hidden) {
    return absl::InternalError(absl::StrCat("the model runner returned ", logits.hidden.size(),
                                            " numbers of hidden states, expected ", hidden));
  }
  const absl::Status status =
      CheckRunnerOutput(batch.logit_rows.size(), batch.row_outputs, limits.vocabulary, logits);
  if (status.ok()) return status;
  return absl::InternalError(
      absl::StrCat("what the model runner returned is wrong: ", status.message()));
}

}  // namespace

BatchPipeline::BatchPipeline(ModelRunner& runner, int concurrent_steps)
    : runner_(runner), concurrent_steps_(concurrent_steps) {}

absl::StatusOr<std::vector<BatchPipeline::Batch>> BatchPipeline::Pack(
    absl::Span<const SequenceRows> sequences) const {
  const RunnerLimits limits = runner_.limits();
  std::vector<Batch> out;
  Builder builder(limits);
  for (size_t s = 0; s < sequences.size(); ++s) {
    const int sequence = static_cast<int>(s);
    for (const SequenceRows::Row& row : sequences[s].rows) {
      if (!builder.Fits(sequence, row) && !builder.empty()) out.push_back(builder.Take());
      if (!builder.Fits(sequence, row)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "a row that sees ", row.prefix, " positions and ", row.ancestors.size(),
            " tree nodes exceeds the model runner's limits: ", limits.max_context_slots, " and ",
            limits.max_ancestor_slots));
      }
      builder.Add(sequence, sequences[s], row);
    }
  }
  if (!builder.empty()) out.push_back(builder.Take());
  return out;
}

absl::Status BatchPipeline::Begin(absl::Span<const SequenceRows> sequences) {
  absl::StatusOr<std::vector<Batch>> batches = Pack(sequences);
  if (!batches.ok()) return batches.status();
  sets_.push_back({.batches = *std::move(batches), .sequences = sequences.size()});
  return BeginWhatFits();
}

absl::Status BatchPipeline::BeginWhatFits() {
  if (concurrent_steps_ <= 1) return absl::OkStatus();
  for (Set& set : sets_) {
    for (; set.begun < set.batches.size(); ++set.begun, ++running_) {
      if (running_ >= concurrent_steps_) return absl::OkStatus();
      absl::Status status = runner_.Begin(set.batches[set.begun].rows);
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

absl::Status BatchPipeline::Run(Set& set, size_t batch, RunnerOutput* logits) {
  if (concurrent_steps_ <= 1) return runner_.Step(set.batches[batch].rows, logits);
  // The next batch of the oldest set has always begun, so batches take freed places in order.
  --running_;
  absl::Status status = runner_.End(logits);
  return status.ok() ? BeginWhatFits() : status;
}

absl::StatusOr<StepOutput> BatchPipeline::End(StepOutput old) {
  StepOutput out = std::move(old);
  Set& set = sets_.front();
  out.batches_ = 0;
  out.rows_.assign(set.sequences, {});
  const RunnerLimits limits = runner_.limits();
  for (size_t b = 0; b < set.batches.size(); ++b) {
    const Batch& batch = set.batches[b];
    if (b == out.blocks_.size()) out.blocks_.push_back(std::make_unique<RunnerOutput>());
    RunnerOutput* logits = out.blocks_[b].get();
    logits->hidden.clear();
    logits->choices.clear();
    logits->logprobs.clear();
    if (absl::Status status = Run(set, b, logits); !status.ok()) return status;
    if (!batch.rows.logit_rows.empty()) {
      if (absl::Status s = CheckShape(*logits, batch.rows, limits); !s.ok()) return s;
    }
    int with_logits = 0;
    for (size_t i = 0; i < batch.wanted.size(); ++i) {
      const auto& [sequence, hidden] = batch.wanted[i];
      StepOutput::Row row;
      if (!logits->choices.empty()) row.choices = logits->choices[i];
      if (row.choices.empty()) row.logits = logits->row(with_logits++);
      if (!logits->logprobs.empty() && logits->logprobs[i].token >= 0) {
        row.logprobs = &logits->logprobs[i];
      }
      if (hidden) row.hidden = logits->hidden.data() + i * static_cast<size_t>(limits.hidden);
      out.rows_[sequence].push_back(row);
    }
    ++out.batches_;
  }
  sets_.pop_front();
  return out;
}

void BatchPipeline::Drain() {
  RunnerOutput unused;
  for (; running_ > 0; --running_) runner_.End(&unused).IgnoreError();
  sets_.clear();
}

absl::StatusOr<StepOutput> RunRows(ModelRunner& runner, absl::Span<const SequenceRows> sequences,
                                   StepOutput old) {
  BatchPipeline pipeline(runner, runner.limits().concurrent_steps);
  if (absl::Status status = pipeline.Begin(sequences); !status.ok()) {
    pipeline.Drain();
    return status;
  }
  absl::StatusOr<StepOutput> out = pipeline.End(std::move(old));
  pipeline.Drain();
  return out;
}

}  // namespace espalier
