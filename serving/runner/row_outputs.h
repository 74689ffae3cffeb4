// Sampling by the runner: replaces the logits of a row, as many numbers as the vocabulary has
// tokens, by the sampled token, the most probable tokens or a log-probability (compare vLLM's
// SamplingMetadata and SamplerOutput).
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "serving/runner/model_runner.h"

namespace espalier {

// Returns InvalidArgument, naming the field, if row_outputs, next_prompt_tokens or row_edits do not
// have one valid entry per row of logit_rows, or sequence_sampling not one valid entry per
// sequence.
absl::Status CheckRowOutputs(const RunnerBatch& batch, int vocabulary);

// Fills RunnerOutput::choices of the rows that do not request logits, and removes their logits:
// - kToken: one sampled token; its probability is not set. -1 for a tree node that is not on the
//   path of sampled tokens, because it cannot be accepted.
// - kPromptLogprob: the given next token.
// - n > 0: the most probable tokens, by TopTokens or, for a coupled sequence, CoupledTopTokens.
//   Logit edits are applied before; log-probabilities are of the unedited logits. A row whose edits
//   mask all tokens keeps its logits. REQUIRES: CheckRowOutputs, and the logits of all rows of
//   logit_rows.
//
// Sequences are independent of each other. `for_each` calls its second argument for 0, 1, ... below
// its first, on any threads; null: serially.
using ForEach = std::function<void(int, const std::function<void(int)>&)>;
void SampleRows(const RunnerBatch& batch, RunnerOutput* logits, const ForEach& for_each = nullptr);

// Returns InvalidArgument if `logits` does not hold what `row_outputs` requests for this number of
// rows.
absl::Status CheckRunnerOutput(size_t rows, absl::Span<const int32_t> row_outputs, int vocabulary,
                               const RunnerOutput& logits);

}  // namespace espalier
