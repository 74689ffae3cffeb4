// Packs rows of many sequences into as few runner batches as the runner's limits allow, runs them
// in order, several at once where the runner can, and hands the wanted logits back. The only place
// that knows the layout of a RunnerBatch.
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
    int32_t prefix = 0;              // slots of the sequence that it sees
    std::vector<int32_t> ancestors;  // tree nodes: path of slots, its own last
    bool wants_logits = false;
    bool wants_hidden = false;            // with logits
    int32_t row_output = RunnerBatch::kLogits;  // see RunnerBatch::row_outputs
    int32_t next_prompt_tokens = -1;               // the same
    RowLogitEdits edits;  // besides its metadata's, where tokens or best ones are wished
  };

  absl::Span<const int32_t> slots;  // the whole sequence, this step's own rows included
  int adapter = -1;                 // of all its rows; -1: none
  SamplingMetadata metadata;                   // of rows whose tokens or best choices are wished
  std::vector<Row> rows;            // a row comes after all that it sees
};

// What `rules` make of logits, wherever tokens or best ones are wished of a sequence's rows: null
// if they make nothing of them, ...
std::shared_ptr<const SequenceLogitEdits> SequenceEditsOf(const LogitsProcessor& rules);
// ... and of a row behind the answer and then `path`. Where they cannot be followed its logits are
// wished, so that whoever looks at them finds out why.
void AddRowEdits(const LogitsProcessor& rules, absl::Span<const int> path, SequenceRows::Row* row);

class StepOutput {
 public:
  // Logits of the `wanted`-th row of sequence `sequence` that asked for them; null if the runner
  // gave choices instead.
  const float* at(int sequence, int wanted) const { return rows_[sequence][wanted].logits; }
  // What was wished of it; empty if the runner gave logits.
  absl::Span<const TokenProbability> choices(int sequence, int wanted) const {
    return rows_[sequence][wanted].choices;
  }
  // Those that its metadata wants with its choice; null: none came.
  const TokenLogprobs* logprobs(int sequence, int wanted) const {
    return rows_[sequence][wanted].logprobs;
  }
  // The hidden state of the same row; null if it did not ask for it.
  const float* hidden(int sequence, int wanted) const { return rows_[sequence][wanted].hidden; }
  int batches() const { return batches_; }

 private:
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
  // The runner outlives it. `concurrent_steps`: at most as many as its limits say.
  BatchPipeline(ModelRunner& runner, int concurrent_steps);

  // The set is packed, and begun as far as there is room. InvalidArgument if a single row breaks a
  // limit by itself: then it is not there. After an error of the runner only Drain makes sense.
  absl::Status Begin(absl::Span<const SequenceRows> sequences);
  // Waits for the oldest set. Errors of the runner; Internal if it returns logits of another shape;
  // after them only Drain makes sense. `old` lends its memory: a step's logits can be megabytes,
  // which the system would have to map and clear each time.
  absl::StatusOr<StepOutput> End(StepOutput old = StepOutput());
  // Waits for all that was begun, and forgets all sets.
  void Drain();

 private:
  struct Batch {
    RunnerBatch rows;
    struct Wanted {
      int sequence = 0;
      bool hidden = false;
    };
    std::vector<Wanted> wanted;  // of each logits row
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
  int running_ = 0;  // batches that the runner has begun
};

// One set from its beginning to its end.
absl::StatusOr<StepOutput> RunRows(ModelRunner& runner, absl::Span<const SequenceRows> sequences,
                                   StepOutput old = StepOutput());

}  // namespace espalier
