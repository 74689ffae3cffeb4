// What an SSM has learned of the LLM's continuations, and what its drafts are worth: by engines that
// run to the end in the caller's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "serving/distillation/distillation_samples.h"
#include "serving/engine/engine.h"

namespace espalier {

// Requests that are over, and all. An error ends the call with it.
using DistillationProgress = std::function<absl::Status(int64_t done, int64_t total)>;

// By prompt and token of its continuation: whether the model's most probable token after all tokens
// before it is that token. `width`: prompts without a sample that is left are not looked at, and
// have no entries.
absl::StatusOr<std::vector<std::vector<bool>>> ScoreContinuations(
    ModelRunner* model, const Tokenizer& tokenizer, const EngineOptions& options,
    absl::Span<const DistillationPrompt> prompts, int width, const DistillationProgress& progress);

struct DraftEfficiency {
  int64_t tokens = 0;  // of all answers but for the first of each, which comes with the prompt
  int64_t verifications = 0;
  int64_t drafted = 0;
  int64_t accepted = 0;

  double tokens_per_verification() const {
    return verifications == 0 ? 0
                              : static_cast<double>(tokens) / static_cast<double>(verifications);
  }
};

// Answers the prompts with trees of all SSMs, merged. Prompt i is sampled with seed
// sampling.seed + i.
absl::StatusOr<DraftEfficiency> MeasureDrafts(ModelRunner* llm, const std::vector<ModelRunner*>& ssms,
                                         const Tokenizer& tokenizer, const EngineOptions& options,
                                         absl::Span<const std::vector<int>> prompts, int tokens,
                                         const SamplingParameters& sampling,
                                         const DistillationProgress& progress);

}  // namespace espalier
