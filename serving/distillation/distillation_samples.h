// What boost-tuning trains on: an LLM's continuations of prompts, cut into samples, of which each
// SSM gets those that the ones before it have not learned.
//
// After collective boost-tuning in SpecInfer (Miao et al., ASPLOS 2024, arXiv:2305.09781, section
// 3.1): one SSM is tuned at a time; samples for which it gives the LLM's own subsequent tokens are
// marked; the next one is tuned on the rest. A sample here is a prompt with the continuation up to
// some token and the `width` tokens after it, `width` apart, so that one continuation yields
// several of them: those tokens are what a draft of that depth has to hit.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace espalier {

// A token and how probable the LLM finds it.
struct LikelyToken {
  int token = 0;
  float probability = 0;

  bool operator==(const LikelyToken&) const = default;
};

struct DistillationPrompt {
  std::vector<int> prompt;        // not empty
  std::vector<int> continuation;  // the LLM's
  // By sample, which SSM was the first to learn it, counted from 1; 0: none has. Missing ones are
  // 0.
  std::vector<int> learned_by;
  // By token of the continuation, the LLM's most probable ones in its place, each once. Empty: not
  // known.
  std::vector<std::vector<LikelyToken>> likely;

  bool operator==(const DistillationPrompt&) const = default;
};

// The last sample of a continuation may be shorter than the others. REQUIRES: width > 0.
int SamplesOf(const DistillationPrompt& prompt, int width);
int64_t CountSamples(absl::Span<const DistillationPrompt> prompts, int width);
// Those that no SSM has learned.
int64_t CountLeft(absl::Span<const DistillationPrompt> prompts, int width);

// Marks the samples of which every token agrees and that nobody has learned before. `agrees`: by
// token of the continuation, whether it is what SSM number `ssm` would say after all tokens before
// it. Returns how many were marked.
int64_t MarkLearned(const std::vector<bool>& agrees, int width, int ssm, DistillationPrompt* prompt);

// One example for each prompt with a sample that is left.
struct DistillationRound {
  static constexpr int32_t kIgnored = -100;  // label that adds nothing to the loss

  int64_t rows = 0;
  int64_t columns = 0;  // of the longest prompt, left or not: all rounds train the same graph
  int64_t samples = 0;
  std::vector<int32_t> tokens;   // [rows, columns]
  std::vector<int32_t> targets;  // likewise: the next token if a sample that is left has it
  // Where labels are soft, [rows, columns, soft]: tokens and what their negative log-probability is
  // weighted with, so that the weighted sum is the cross entropy of the SSM's distribution against
  // the LLM's. The LLM's most probable tokens have their probability. What is beyond them is
  // estimated by the token that the LLM drew: weight 1 if it is none of those. Drawn at temperature
  // 1 that is, on average, the rest of the cross entropy; below, it is less.
  int64_t soft = 0;
  std::vector<int32_t> soft_tokens;
  std::vector<float> soft_weights;
};
// `likely`: how many of the LLM's most probable tokens are labels; 0: the next tokens alone.
DistillationRound MakeRound(absl::Span<const DistillationPrompt> prompts, int width, int likely = 0);

}  // namespace espalier
