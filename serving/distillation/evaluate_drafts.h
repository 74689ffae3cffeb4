// Evaluation for distillation: which of the LLM's continuations an SSM reproduces, and how many
// tokens its drafts save. Runs engines to completion in the caller's thread.
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

// Called with the finished and total requests. If it returns an error, the evaluation returns that.
using DistillationProgress = std::function<absl::Status(int64_t done, int64_t total)>;

// Returns, by prompt and token of its continuation, whether that token is the model's most probable
// one after all tokens before it. Skips prompts whose samples (of `width` tokens) are all learned;
// they get an empty entry.
absl::StatusOr<std::vector<std::vector<bool>>> ScoreContinuations(
    ModelRunner* model, const Tokenizer& tokenizer, const EngineOptions& options,
    absl::Span<const DistillationPrompt> prompts, int width, const DistillationProgress& progress);

struct DraftEfficiency {
  int64_t tokens = 0;  // of all outputs, without the first of each, which comes with the prompt
  int64_t verifications = 0;
  int64_t drafted = 0;
  int64_t accepted = 0;

  double tokens_per_verification() const {
    return verifications == 0 ? 0
                              : static_cast<double>(tokens) / static_cast<double>(verifications);
  }
};

// Generates outputs for the prompts with the merged trees of all SSMs. Prompt i is sampled with
// seed sampling.seed + i.
absl::StatusOr<DraftEfficiency> MeasureDrafts(
    ModelRunner* llm, const std::vector<ModelRunner*>& ssms, const Tokenizer& tokenizer,
    const EngineOptions& options, absl::Span<const std::vector<int>> prompts, int tokens,
    const SamplingParameters& sampling, const DistillationProgress& progress);

}  // namespace espalier
