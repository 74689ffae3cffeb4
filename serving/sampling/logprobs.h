// Log-probabilities as reported to clients.
#pragma once

#include <utility>
#include <vector>

namespace espalier {

struct TokenLogprobs {
  int token = -1;
  float logprob = 0;
  int rank = 1;                            // 1: no other token is more probable
  std::vector<std::pair<int, float>> top;  // most probable first
};

// Limit of a request, besides the token itself.
inline constexpr int kMaxTopLogprobs = 64;

// Returns the log-probability of `token` and of the `top` most probable tokens (equals by rising
// id) under the model's distribution softmax(logits), before temperature, penalties and masks.
// Logits of minus infinity give the lowest finite number, because JSON has no infinity.
TokenLogprobs LogprobsOf(const float* logits, int vocabulary, int token, int top);

}  // namespace espalier
