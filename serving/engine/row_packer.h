// Packs rows of many sequences into as few runner batches as the runner's limits allow, runs them
// in order and hands the wanted logits back. The only place that knows the layout of a RunnerBatch.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "serving/engine/model_runner.h"

namespace espalier {

struct SequenceRows {
  struct Row {
    int32_t token = 0;
    int32_t position = 0;
    int32_t slot = 0;
    int32_t prefix = 0;              // slots of the sequence that it sees
    std::vector<int32_t> ancestors;  // tree nodes: path of slots, its own last
    bool wants_logits = false;
    bool wants_hidden = false;     // with logits
    bool choice_suffices = false;  // instead of logits: the token with the largest one
  };

  absl::Span<const int32_t> slots;  // the whole sequence, this step's own rows included
  int adapter = -1;                 // of all its rows; -1: none
  std::vector<Row> rows;            // a row comes after all that it sees
};

class StepLogits {
 public:
  // Logits of the `wanted`-th row of sequence `sequence` that asked for them; null if the runner
  // gave its choice instead.
  const float* at(int sequence, int wanted) const { return rows_[sequence][wanted].logits; }
  // -1 if the runner gave logits.
  int choice(int sequence, int wanted) const { return rows_[sequence][wanted].choice; }
  // The hidden state of the same row; null if it did not ask for it.
  const float* hidden(int sequence, int wanted) const { return rows_[sequence][wanted].hidden; }
  int batches() const { return batches_; }

 private:
  friend absl::StatusOr<StepLogits> RunRows(ModelRunner&, absl::Span<const SequenceRows>,
                                            StepLogits);

  struct Row {
    const float* logits = nullptr;
    const float* hidden = nullptr;
    int choice = -1;
  };

  std::vector<std::unique_ptr<RunnerLogits>> blocks_;  // the first `batches_` are filled
  int batches_ = 0;
  std::vector<std::vector<Row>> rows_;
};

// Errors of the runner; Internal if it returns logits of another shape; InvalidArgument if a single
// row breaks a limit by itself. `old` lends its memory: a step's logits can be megabytes, which the
// system would have to map and clear each time.
absl::StatusOr<StepLogits> RunRows(ModelRunner& runner, absl::Span<const SequenceRows> sequences,
                                   StepLogits old = StepLogits());

}  // namespace espalier
