// Coupled sampling (Gumbel-max trick, here as an exponential race): the noise of a request at a
// position is fixed before any model runs. The token is argmin over x of E(x) / p(x), where E(x) is
// exponentially distributed and a pure function of (seed, position, x). This is a sample from p.
// The LLM's token does not depend on the drafts, so the output of a seed is the same with any tree
// or none; and a drafter that uses the same noise with its own distribution usually finds the same
// token (Daliri, Musco, Suresh 2024, "Coupling without communication and drafter-invariant
// speculative decoding").
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "serving/sampling/counter_rng.h"
#include "serving/sampling/distribution.h"
#include "serving/sampling/vocab_simd.h"

namespace espalier {

// The noise of one position. There is one value per token of a vocabulary of 10^5, so each costs
// one 64-bit mix (SplitMix64: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number
// generators"), from a start that Philox derives from seed and position.
class ExponentialClocks {
 public:
  ExponentialClocks(uint64_t seed, uint64_t position) {
    const PhiloxBlock block =
        Philox(seed, position, static_cast<uint64_t>(RngStream::kCoupled) << 56);
    begin_ = (static_cast<uint64_t>(block.word[0]) << 32) | block.word[1];
  }

  // Returns a uniform number in [0, 1) with 52 bits, at most E(token).
  double Uniform(int token) const {
    uint64_t z = begin_ + (static_cast<uint64_t>(token) + 1) * kClockStep;
    z = (z ^ (z >> 30)) * kClockMix[0];
    z = (z ^ (z >> 27)) * kClockMix[1];
    return std::bit_cast<double>(((z ^ (z >> 31)) >> 12) | kClockOne) - 1;
  }
  // Returns E(token).
  double Of(int token) const { return -std::log1p(-Uniform(token)); }
  uint64_t begin() const { return begin_; }

 private:
  uint64_t begin_;
};

// The first `most` tokens by arrival time E(x) / weight(x). Weights are probabilities up to a
// common factor.
class ExponentialRace {
 public:
  struct Entry {
    int token;
    double rings;
  };

  ExponentialRace(uint64_t seed, uint64_t position, int most = 1)
      : clocks_(seed, position), most_(static_cast<size_t>(most)) {
    first_.reserve(most_ + 1);
  }

  void Enter(int token, double weight) {
    if (weight <= 0) return;
    // This test alone rejects nearly all tokens.
    const bool full = first_.size() == most_;
    if (full && clocks_.Uniform(token) >= first_.back().rings * weight) return;
    const double rings = clocks_.Of(token) / weight;
    if (full && rings >= first_.back().rings) return;
    const auto later = [](double time, const Entry& entry) { return time < entry.rings; };
    first_.insert(std::upper_bound(first_.begin(), first_.end(), rings, later), {token, rings});
    if (first_.size() > most_) first_.pop_back();
  }
  // Enters the tokens from `first` on.
  void Enter(int first, absl::Span<const double> weights) {
    size_t at = 0;
    for (; at < weights.size() && first_.size() < most_; ++at) {
      Enter(first + static_cast<int>(at), weights[at]);
    }
    int early[kMostTogether];
    while (at < weights.size()) {
      const absl::Span<const double> block = weights.subspan(at, together_);
      const int token = first + static_cast<int>(at);
      const int count = EarlyArrivals(clocks_.begin(), token, block.data(),
                                      static_cast<int>(block.size()), first_.back().rings, early);
      for (int i = 0; i < count; ++i) Enter(token + early[i], block[static_cast<size_t>(early[i])]);
      at += block.size();
      together_ = std::min(2 * together_, kMostTogether);
    }
  }
  // By arrival time.
  absl::Span<const Entry> first() const { return first_; }
  int winner() const { return first_.empty() ? 0 : first_[0].token; }

 private:
  // Tokens per vectorized block: few while most of them still arrive before the last entry.
  static constexpr size_t kFirstTogether = 16, kMostTogether = 256;

  const ExponentialClocks clocks_;
  const size_t most_;
  size_t together_ = kFirstTogether;
  std::vector<Entry> first_;
};

// Returns the token that arrives first. Never one of probability zero.
inline int CoupledSample(const Distribution& p, uint64_t seed, uint64_t position) {
  ExponentialRace race(seed, position);
  for (int token = 0; token < static_cast<int>(p.size()); ++token) race.Enter(token, p[token]);
  return race.winner();
}

}  // namespace espalier
