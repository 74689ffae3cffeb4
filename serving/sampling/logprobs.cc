#include "serving/sampling/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "serving/sampling/vocab_simd.h"

namespace espalier {

TokenLogprobs LogprobsOf(const float* logits, int vocabulary, int token, int top) {
  const LogitMax highest = FindLogitMax(logits, vocabulary);
  const float most = logits[highest.token];
  // NaN logits must give NaN log-probabilities.
  const double normaliser =
      highest.numbers ? most + std::log(Exponentials(logits, vocabulary, most, 1, nullptr)) : NAN;
  const auto logprob = [&](int i) {
    return std::max(static_cast<float>(logits[i] - normaliser),
                    std::numeric_limits<float>::lowest());
  };
  TokenLogprobs out{.token = token, .logprob = logprob(token)};
  out.rank += CountAbove(logits, vocabulary, logits[token]);
  for (const int i : TopKTokens(logits, vocabulary, top)) out.top.emplace_back(i, logprob(i));
  return out;
}

}  // namespace espalier
