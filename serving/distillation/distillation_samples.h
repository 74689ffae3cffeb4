// Training data of distillation: an LLM's continuations of prompts, cut into samples. Each SSM is
// trained on the samples that the SSMs before it have not learned.
//
// This is collective boost-tuning of SpecInfer (Miao et al., ASPLOS 2024, arXiv:2305.09781, section
// 3.1): one SSM is tuned at a time; samples for which it gives the LLM's own subsequent tokens are
// marked; the next one is tuned on the rest. A sample here is a prompt, a part of its continuation
// and the `width` tokens after that; samples of one continuation are `width` tokens apart. A draft
// of depth `width` has to match these tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace espalier {

// A token with its probability under the LLM.
struct LikelyToken {
  int token = 0;
  float probability = 0;

  bool operator==(const LikelyToken&) const = default;
};

struct DistillationPrompt {
  std::vector<int> prompt;        // not empty
  std::vector<int> continuation;  // the LLM's
  // By sample, the number (from 1) of the first SSM that learned it; 0 or missing: none.
  std::vector<int> learned_by;
  // By token of the continuation, the LLM's most probable tokens there, each once. Empty: unknown.
  std::vector<std::vector<LikelyToken>> likely;

  bool operator==(const DistillationPrompt&) const = default;
};

// The number of samples; the last one of a continuation may be shorter. REQUIRES: width > 0.
int SamplesOf(const DistillationPrompt& prompt, int width);
int64_t CountSamples(absl::Span<const DistillationPrompt> prompts, int width);
// The number of samples that no SSM has learned.
int64_t CountLeft(absl::Span<const DistillationPrompt> prompts, int width);

// Marks the unlearned samples whose tokens all agree, and returns their number. `agrees`: by token
// of the continuation, whether SSM number `ssm` would generate it after all tokens before it.
int64_t MarkLearned(const std::vector<bool>& agrees, int width, int ssm,
                    DistillationPrompt* prompt);

// The training data of one SSM: one example per prompt with an unlearned sample.
struct DistillationRound {
  static constexpr int32_t kIgnored = -100;  // label without loss

  int64_t rows = 0;
  int64_t columns = 0;  // of the longest prompt, learned or not: all rounds train the same graph
  int64_t samples = 0;
  std::vector<int32_t> tokens;  // [rows, columns]
  // [rows, columns]: the next token if it is in an unlearned sample, else kIgnored
  std::vector<int32_t> targets;
  // Soft labels, [rows, columns, soft]: tokens, and weights of their negative log-probability such
  // that the weighted sum is the cross entropy of the SSM against the LLM. The LLM's most probable
  // tokens are weighted with their probability. The rest is estimated by the token that the LLM
  // sampled: weight 1 if it is none of them. At temperature 1 the estimate is unbiased; below, it
  // is too small.
  int64_t soft = 0;
  std::vector<int32_t> soft_tokens;
  std::vector<float> soft_weights;
};
// `likely`: how many of the LLM's most probable tokens are labels; 0: the next token only.
DistillationRound MakeRound(absl::Span<const DistillationPrompt> prompts, int width,
                            int likely = 0);

}  // namespace espalier
