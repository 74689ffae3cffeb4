// What is wished of a step instead of logits, each of which has as many numbers as the vocabulary
// has tokens.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "serving/runner/model_runner.h"

namespace espalier {

// InvalidArgument naming what is wrong: not one row_output for each wanted row, or one that cannot be;
// not one metadata for each sequence, or a parameter out of its range; not one edit for each wanted
// row.
absl::Status CheckRowOutputs(const RunnerBatch& batch, int vocabulary);

// Puts choices in the place of logits, wherever the batch row_outputs so. A token (RunnerBatch::kToken)
// is one choice, whose probability is not said; that of a tree's node behind which another token
// was chosen, so that its own cannot matter, is -1. A token that follows is the choice itself. Best
// ones are as TopTokens or, by a sampled sequence's metadata, CoupledTopTokens has them. Edits come
// before all of these, but log-probabilities are those of the logits as they were. A row of which
// edits leave no token keeps its logits. REQUIRES CheckRowOutputs, and the logits of all wanted rows.
//
// Sequences are independent of each other: `for_each` (null: one after the other) calls its second
// argument for 0, 1 and so on below its first, on whatever threads it has.
using ForEach = std::function<void(int, const std::function<void(int)>&)>;
void SampleRows(const RunnerBatch& batch, RunnerOutput* logits, const ForEach& for_each = nullptr);

// InvalidArgument if these are not the choices and logits of so many rows of such row_outputs.
absl::Status CheckRunnerOutput(size_t rows, absl::Span<const int32_t> row_outputs, int vocabulary,
                         const RunnerOutput& logits);

}  // namespace espalier
