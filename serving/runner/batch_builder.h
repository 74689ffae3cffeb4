// Packs the rows of many sequences into as few RunnerBatches as the runner's limits allow, runs
// them in order, with concurrent steps if the runner supports them, and returns the outputs per
// sequence. Only this file knows the layout of a RunnerBatch.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "serving/runner/model_runner.h"
#include "serving/sampling/logits_processor.h"

namespace espalier {

struct SequenceRows {
  struct Row {
    int32_t token = 0;
    int32_t position = 0;
    int32_t slot = 0;
    int32_t prefix = 0;              // slots of the sequence that the row attends to
    std::vector<int32_t> ancestors;  // of tree nodes: slots on the path from the root, its own last
    bool wants_logits = false;
    bool wants_hidden = false;                  // REQUIRES: wants_logits
    int32_t row_output = RunnerBatch::kLogits;  // see RunnerBatch::row_outputs
    int32_t next_prompt_tokens = -1;            // see RunnerBatch::next_prompt_tokens
    RowLogitEdits edits;  // in addition to the sequence's, unless row_output is kLogits
  };

  absl::Span<const int32_t> slots;  // of the whole sequence, including the rows of this step
  int adapter = -1;                 // of all rows; -1: none
  SamplingMetadata metadata;        // for rows whose row_output is not kLogits
  std::vector<Row> rows;            // a row comes after all rows that it attends to
};

// The logit edits of a sequence, for SamplingMetadata; null if the processor is inactive.
std::shared_ptr<const SequenceLogitEdits> SequenceEditsOf(const LogitsProcessor& rules);
// Sets the logit edits of a row after the output and then `path`. If the processor fails there,
// requests the logits instead, so that the caller finds the error.
void AddRowEdits(const LogitsProcessor& rules, absl::Span<const int> path, SequenceRows::Row* row);

class StepOutput {
 public:
  // Logits of row `wanted` among the rows of `sequence` that requested outputs; null if it has
  // choices.
  const float* at(int sequence, int wanted) const { return rows_[sequence][wanted].logits; }
  // The tokens that the row requested; empty if it has logits.
  absl::Span<const TokenProbability> choices(int sequence, int wanted) const {
    return rows_[sequence][wanted].choices;
  }
  // The log-probabilities that the row's metadata requests; null if there are none.
  const TokenLogprobs* logprobs(int sequence, int wanted) const {
    return rows_[sequence][wanted].logprobs;
  }
  // The hidden state of the row; null if not requested.
  const float* hidden(int sequence, int wanted) const { return rows_[sequence][wanted].hidden; }
  int batches() const { return batches_; }

 private:
  // A queue of row sets on their way through a runner, oldest first. With one step at a time, a set
  // runs when End asks for it.
  friend class BatchPipeline;

  struct Row {
    const float* logits = nullptr;
    const float* hidden = nullptr;
    absl::Span<const TokenProbability> choices;
    const TokenLogprobs* logprobs = nullptr;
  };

  std::vector<std::unique_ptr<RunnerOutput>> blocks_;  // the first `batches_` are filled
  int batches_ = 0;
  std::vector<std::vector<Row>> rows_;
};

// Sets of rows on their way through a runner, the oldest first. With one step at once nothing runs
// before End asks for it.
class BatchPipeline {
 public:
  // The runner must outlive it. `concurrent_steps` is at most the runner's limit.
  BatchPipeline(ModelRunner& runner, int concurrent_steps);

  // Packs a set, and begins its batches as far as the limit allows. Returns InvalidArgument if a
  // single row exceeds a limit; the set is not added then. After an error of the runner, only Drain
  // may be called.
  absl::Status Begin(absl::Span<const SequenceRows> sequences);
  // Waits for the oldest set. Returns errors of the runner, or Internal if its output has a wrong
  // shape; after an error, only Drain may be called. `old` donates its memory: the logits of a step
  // can be megabytes, which the system would map and clear each time.
  absl::StatusOr<StepOutput> End(StepOutput old = StepOutput());
  // Waits for all batches that were begun, and removes all sets.
  void Drain();

 private:
  struct Batch {
    RunnerBatch rows;
    struct Wanted {
      int sequence = 0;
      bool hidden = false;
    };
    std::vector<Wanted> wanted;  // per row of logit_rows
  };
  struct Set {
    std::vector<Batch> batches;
    size_t begun = 0;
    size_t sequences = 0;
  };
  class Builder;

  absl::StatusOr<std::vector<Batch>> Pack(absl::Span<const SequenceRows> sequences) const;
  absl::Status BeginWhatFits();
  absl::Status Run(Set& set, size_t batch, RunnerOutput* logits);

  ModelRunner& runner_;
  const int concurrent_steps_;
  std::deque<Set> sets_;
  int running_ = 0;  // batches in flight
};

// Runs one set from beginning to end.
absl::StatusOr<StepOutput> RunRows(ModelRunner& runner, absl::Span<const SequenceRows> sequences,
                                   StepOutput old = StepOutput());

}  // namespace espalier
