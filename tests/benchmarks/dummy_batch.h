// A decode batch for benchmarks.
#pragma once

#include "serving/runner/model_runner.h"

namespace espalier {

// Returns a batch with the first token of `rows` sequences, with logits for each row.
inline RunnerBatch DummyBatch(int rows) {
  RunnerBatch batch;
  batch.ancestor_start.assign(static_cast<size_t>(rows) + 1, 0);
  batch.sequence_start.push_back(0);
  for (int r = 0; r < rows; ++r) {
    batch.tokens.push_back(r);
    batch.positions.push_back(0);
    batch.slots.push_back(r);
    batch.row_sequence.push_back(r);
    batch.row_prefix.push_back(1);
    batch.sequence_slots.push_back(r);
    batch.sequence_start.push_back(r + 1);
    batch.logit_rows.push_back(r);
  }
  return batch;
}

}  // namespace espalier
