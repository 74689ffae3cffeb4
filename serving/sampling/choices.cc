#include "serving/sampling/choices.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "serving/sampling/shared_noise.h"
#include "serving/sampling/wide.h"

namespace espalier {
namespace {

constexpr int kRunners = 64;

// The most probable `count` tokens, best first, equals by rising id. One pass: few are ever better
// than the last of those kept.
std::vector<int> MostProbable(const Distribution& p, int count) {
  std::vector<int> best;
  const size_t most = std::clamp(count, 0, static_cast<int>(p.size()));
  if (most == 0) return best;
  best.reserve(most + 1);
  const auto before = [&](int a, int b) { return p[a] > p[b]; };
  for (int i = 0; i < static_cast<int>(p.size()); ++i) {
    if (best.size() == most && !(p[i] > p[best.back()])) continue;
    best.insert(std::upper_bound(best.begin(), best.end(), i, before), i);
    if (best.size() > most) best.pop_back();
  }
  return best;
}

// exp of what a temperature makes of logits, all of which may be chosen, a block at a time.
class Weights {
 public:
  static constexpr int kBlock = 1024;

  Weights(absl::Span<const float> logits, double temperature, float highest)
      : logits_(logits), temperature_(temperature), highest_(highest) {}

  int blocks() const { return (static_cast<int>(logits_.size()) + kBlock - 1) / kBlock; }
  int size(int block) const {
    return std::min(kBlock, static_cast<int>(logits_.size()) - block * kBlock);
  }
  // Their sum. `out` (null, or of size(block)): each.
  double Of(int block, double* out) const {
    return Exponentials(logits_.data() + block * kBlock, size(block), highest_, temperature_, out);
  }

 private:
  const absl::Span<const float> logits_;
  const double temperature_;
  const float highest_;
};

int FirstOf(const Weights& weights, uint64_t seed, int64_t position) {
  SharedRace race(seed, static_cast<uint64_t>(position));
  double block[Weights::kBlock];
  for (int b = 0; b < weights.blocks(); ++b) {
    weights.Of(b, block);
    for (int i = 0; i < weights.size(b); ++i) race.Enter(b * Weights::kBlock + i, block[i]);
  }
  return race.first();
}

// As SampleFrom, of weights that are not divided by their sum.
int DrawFrom(const Weights& weights, double uniform) {
  std::vector<double> sums;
  double all = 0;
  for (int b = 0; b < weights.blocks(); ++b) {
    sums.push_back(weights.Of(b, nullptr));
    all += sums.back();
  }
  const double wanted = uniform * all;
  double before = 0, block[Weights::kBlock];
  int last = 0;
  for (int b = 0; b < weights.blocks(); ++b) {
    // The sums of a block's parts may be a rounding short of its own.
    if (before + sums[b] <= wanted && b + 1 < weights.blocks()) {
      before += sums[b];
      continue;
    }
    weights.Of(b, block);
    double sum = before;
    for (int i = 0; i < weights.size(b); ++i) {
      if (block[i] <= 0) continue;
      sum += block[i];
      last = b * Weights::kBlock + i;
      if (sum > wanted) return last;
    }
    before = sum;
  }
  return last;
}

}  // namespace

absl::StatusOr<int> ChooseToken(absl::Span<const float> logits, const SamplingParameters& sampling,
                                bool shared_noise, int64_t position) {
  const int vocabulary = static_cast<int>(logits.size());
  if (sampling.greedy()) return Argmax(logits.data(), vocabulary);
  if (sampling.keeps_all()) {
    const absl::StatusOr<int> highest = Argmax(logits.data(), vocabulary);
    if (!highest.ok()) return highest.status();
    if (logits[*highest] == -INFINITY) return *highest;
    const Weights weights(logits, sampling.temperature, logits[*highest]);
    return shared_noise
               ? FirstOf(weights, sampling.seed, position)
               : DrawFrom(weights, ResidualUniform(sampling.seed, static_cast<uint64_t>(position)));
  }
  const absl::StatusOr<Distribution> p = SamplingDistribution(logits.data(), vocabulary, sampling);
  if (!p.ok()) return p.status();
  if (shared_noise) return SharedChoice(*p, sampling.seed, static_cast<uint64_t>(position));
  return SampleFrom(*p, ResidualUniform(sampling.seed, static_cast<uint64_t>(position)));
}

absl::StatusOr<std::vector<TokenChoice>> TopChoices(absl::Span<const float> logits, int count) {
  const int vocabulary = static_cast<int>(logits.size());
  const Highest highest = HighestOf(logits.data(), vocabulary);
  const float most = logits[highest.token];
  if (!highest.numbers || most == -INFINITY) {
    return absl::InternalError("its logits are no numbers: are the weights intact?");
  }
  const double sum = Exponentials(logits.data(), vocabulary, most, 1, nullptr);
  std::vector<TokenChoice> out;
  for (const int token : HighestTokens(logits.data(), vocabulary, count)) {
    if (logits[token] == -INFINITY) break;  // excluded by the request's rules
    out.push_back({token, std::exp(static_cast<double>(logits[token]) - most) / sum});
  }
  return out;
}

absl::StatusOr<std::vector<TokenChoice>> SharedChoices(absl::Span<const float> logits, int count,
                                                       const SamplingParameters& sampling,
                                                       int64_t position) {
  absl::StatusOr<Distribution> q =
      SamplingDistribution(logits.data(), static_cast<int>(logits.size()), sampling);
  if (!q.ok()) return q.status();
  const SharedClocks clocks(sampling.seed, static_cast<uint64_t>(position));
  std::vector<TokenChoice> race;
  double sum = 0;
  for (const int token : MostProbable(*q, kRunners)) {
    if ((*q)[token] <= 0) break;
    race.push_back({token, (*q)[token] / std::max(clocks.Of(token), 1e-300)});
    sum += race.back().probability;
  }
  for (TokenChoice& choice : race) choice.probability /= sum;
  std::stable_sort(race.begin(), race.end(), [](const TokenChoice& a, const TokenChoice& b) {
    return a.probability > b.probability;
  });
  if (static_cast<int>(race.size()) > count) race.resize(std::max(count, 0));
  return race;
}

}  // namespace espalier
