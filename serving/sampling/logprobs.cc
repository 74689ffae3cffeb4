#include "serving/sampling/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "serving/sampling/wide.h"

namespace espalier {

TokenLogprobs LogprobsOf(const float* logits, int vocabulary, int token, int top) {
  const Highest highest = HighestOf(logits, vocabulary);
  const float most = logits[highest.token];
  // What is said of logits that are no numbers must be none either.
  const double normaliser =
      highest.numbers ? most + std::log(Exponentials(logits, vocabulary, most, 1, nullptr)) : NAN;
  const auto logprob = [&](int i) {
    return std::max(static_cast<float>(logits[i] - normaliser),
                    std::numeric_limits<float>::lowest());
  };
  TokenLogprobs out{.token = token, .logprob = logprob(token)};
  for (int i = 0; i < vocabulary; ++i) out.rank += logits[i] > logits[token] ? 1 : 0;
  const auto before = [&](int a, int b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  // A heap of the best so far, the worst of them in front.
  std::vector<int> best;
  for (int i = 0; top > 0 && i < vocabulary; ++i) {
    if (static_cast<int>(best.size()) == top) {
      if (!before(i, best.front())) continue;
      std::pop_heap(best.begin(), best.end(), before);
      best.pop_back();
    }
    best.push_back(i);
    std::push_heap(best.begin(), best.end(), before);
  }
  std::sort_heap(best.begin(), best.end(), before);
  for (const int i : best) out.top.emplace_back(i, logprob(i));
  return out;
}

}  // namespace espalier
