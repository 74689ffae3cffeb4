#include "serving/speculative/choices.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "serving/sampling/shared_noise.h"

namespace espalier {
namespace {

constexpr int kRunners = 64;

template <typename Score>
std::vector<int> Best(int size, int count, Score score) {
  std::vector<int> order(size);
  std::iota(order.begin(), order.end(), 0);
  count = std::clamp(count, 0, size);
  std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int a, int b) {
    return score(a) != score(b) ? score(a) > score(b) : a < b;
  });
  order.resize(count);
  return order;
}

}  // namespace

absl::StatusOr<std::vector<Choice>> TopChoices(absl::Span<const float> logits, int count) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - most);
  if (!std::isfinite(sum)) {  // NaN and +infinity end here too
    return absl::InternalError("its logits are no numbers: are the weights intact?");
  }
  std::vector<Choice> out;
  for (const int token :
       Best(static_cast<int>(logits.size()), count, [&](int t) { return logits[t]; })) {
    if (logits[token] == -INFINITY) break;  // excluded by the request's rules
    out.push_back({token, std::exp(logits[token] - most) / sum});
  }
  return out;
}

absl::StatusOr<std::vector<Choice>> SharedChoices(absl::Span<const float> logits, int count,
                                                  const SamplingParameters& sampling,
                                                  int64_t position) {
  absl::StatusOr<Distribution> q =
      SamplingDistribution(logits.data(), static_cast<int>(logits.size()), sampling);
  if (!q.ok()) return q.status();
  std::vector<Choice> race;
  double sum = 0;
  for (const int token :
       Best(static_cast<int>(q->size()), kRunners, [&](int t) { return (*q)[t]; })) {
    if ((*q)[token] <= 0) break;
    const double clock = SharedClock(sampling.seed, static_cast<uint64_t>(position), token);
    race.push_back({token, (*q)[token] / std::max(clock, 1e-300)});
    sum += race.back().probability;
  }
  for (Choice& choice : race) choice.probability /= sum;
  std::stable_sort(race.begin(), race.end(),
                   [](const Choice& a, const Choice& b) { return a.probability > b.probability; });
  if (static_cast<int>(race.size()) > count) race.resize(std::max(count, 0));
  return race;
}

}  // namespace espalier
