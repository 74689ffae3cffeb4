#include "serving/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "serving/sampling/gumbel_coupling.h"
#include "serving/sampling/vocab_simd.h"

namespace espalier {
namespace {

constexpr int kRunners = 8;  // arrivals of a race with known probabilities

// exp of logits over temperature, for a distribution without cuts, one block at a time.
class Weights {
 public:
  static constexpr int kBlock = 1024;

  Weights(absl::Span<const float> logits, double temperature, float highest)
      : logits_(logits), temperature_(temperature), highest_(highest) {}

  int blocks() const { return (static_cast<int>(logits_.size()) + kBlock - 1) / kBlock; }
  int size(int block) const {
    return std::min(kBlock, static_cast<int>(logits_.size()) - block * kBlock);
  }
  // Returns the block's sum. `out` (null, or of size(block)): the weights.
  double Of(int block, double* out) const {
    return Exponentials(logits_.data() + block * kBlock, size(block), highest_, temperature_, out);
  }

 private:
  const absl::Span<const float> logits_;
  const double temperature_;
  const float highest_;
};

void EnterAll(const Weights& weights, ExponentialRace* race) {
  double block[Weights::kBlock];
  for (int b = 0; b < weights.blocks(); ++b) {
    weights.Of(b, block);
    race->Enter(b * Weights::kBlock, {block, static_cast<size_t>(weights.size(b))});
  }
}

// Runs the race of `position` among the tokens that are not cut.
absl::Status Run(absl::Span<const float> logits, const SamplingParameters& sampling,
                 ExponentialRace* race) {
  const int vocabulary = static_cast<int>(logits.size());
  if (sampling.keeps_all()) {
    const absl::StatusOr<int> highest = Argmax(logits.data(), vocabulary);
    if (!highest.ok()) return highest.status();
    if (logits[*highest] == -INFINITY) {
      race->Enter(*highest, 1);
    } else {
      EnterAll(Weights(logits, sampling.temperature, logits[*highest]), race);
    }
    return absl::OkStatus();
  }
  const auto possible = PossibleTokens(logits.data(), vocabulary, sampling);
  if (!possible.ok()) return possible.status();
  for (const TokenProbability& choice : *possible) race->Enter(choice.token, choice.probability);
  return absl::OkStatus();
}

// As SampleFrom, for weights that are not normalized.
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
    // The sums of a block's parts may be less than its own by rounding.
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

absl::StatusOr<int> SampleToken(absl::Span<const float> logits, const SamplingParameters& sampling,
                                bool coupled, int64_t position) {
  const int vocabulary = static_cast<int>(logits.size());
  if (sampling.greedy()) return Argmax(logits.data(), vocabulary);
  if (coupled) {
    ExponentialRace race(sampling.seed, static_cast<uint64_t>(position));
    if (absl::Status s = Run(logits, sampling, &race); !s.ok()) return s;
    return race.winner();
  }
  const double uniform = ResidualUniform(sampling.seed, static_cast<uint64_t>(position));
  if (sampling.keeps_all()) {
    const absl::StatusOr<int> highest = Argmax(logits.data(), vocabulary);
    if (!highest.ok()) return highest.status();
    if (logits[*highest] == -INFINITY) return *highest;
    return DrawFrom(Weights(logits, sampling.temperature, logits[*highest]), uniform);
  }
  const auto possible = PossibleTokens(logits.data(), vocabulary, sampling);
  if (!possible.ok()) return possible.status();
  double sum = 0;
  for (const TokenProbability& choice : *possible) {
    sum += choice.probability;
    if (uniform < sum) return choice.token;
  }
  return possible->back().token;
}

absl::StatusOr<std::vector<TokenProbability>> TopTokens(absl::Span<const float> logits, int count) {
  const int vocabulary = static_cast<int>(logits.size());
  const LogitMax highest = FindLogitMax(logits.data(), vocabulary);
  const float most = logits[highest.token];
  if (!highest.numbers || most == -INFINITY) {
    return absl::InternalError("its logits are no numbers: are the weights intact?");
  }
  const double sum = Exponentials(logits.data(), vocabulary, most, 1, nullptr);
  std::vector<TokenProbability> out;
  for (const int token : TopKTokens(logits.data(), vocabulary, count)) {
    if (logits[token] == -INFINITY) break;  // masked
    out.push_back({token, std::exp(static_cast<double>(logits[token]) - most) / sum});
  }
  return out;
}

absl::StatusOr<std::vector<TokenProbability>> CoupledTopTokens(absl::Span<const float> logits,
                                                               int count,
                                                               const SamplingParameters& sampling,
                                                               int64_t position) {
  ExponentialRace race(sampling.seed, static_cast<uint64_t>(position), std::max(count, kRunners));
  if (absl::Status s = Run(logits, sampling, &race); !s.ok()) return s;
  std::vector<TokenProbability> out;
  double sum = 0;
  for (const ExponentialRace::Entry& entry : race.first()) {
    out.push_back({entry.token, 1 / std::max(entry.rings, 1e-300)});
    sum += out.back().probability;
  }
  for (TokenProbability& choice : out) choice.probability /= sum;
  out.resize(std::min<size_t>(out.size(), static_cast<size_t>(std::max(count, 0))));
  return out;
}

}  // namespace espalier
