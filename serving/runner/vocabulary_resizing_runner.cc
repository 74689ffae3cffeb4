#include "serving/runner/vocabulary_resizing_runner.h"

#include <algorithm>
#include <limits>

#include "serving/runner/row_outputs.h"

namespace espalier {

RunnerLimits VocabularyResizingRunner::limits() const {
  RunnerLimits limits = model_->limits();
  limits.vocabulary = vocabulary_;
  limits.concurrent_steps = 1;
  return limits;
}

absl::Status VocabularyResizingRunner::Step(const RunnerBatch& batch, RunnerOutput* logits) {
  if (absl::Status status = CheckRowOutputs(batch, vocabulary_); !status.ok()) return status;
  const int own = model_->limits().vocabulary;
  // Sampling needs the resized vocabulary, so it happens here.
  RunnerBatch asked = batch;
  asked.row_outputs.clear();
  asked.next_prompt_tokens.clear();
  asked.row_edits.clear();
  asked.sequence_sampling.clear();
  for (int32_t& token : asked.tokens) {
    if (token >= own && token < vocabulary_) token = 0;
  }
  if (absl::Status status = model_->Step(asked, &own_); !status.ok()) return status;
  const auto rows = static_cast<int>(batch.logit_rows.size());
  logits->vocabulary = vocabulary_;
  logits->values.assign(static_cast<size_t>(rows) * vocabulary_,
                        -std::numeric_limits<float>::infinity());
  for (int i = 0; i < rows; ++i) {
    const float* row = own_.row(i);
    std::copy(row, row + std::min(own, vocabulary_),
              logits->values.begin() + static_cast<int64_t>(i) * vocabulary_);
  }
  logits->hidden = own_.hidden;
  SampleRows(batch, logits);
  return absl::OkStatus();
}

}  // namespace espalier
