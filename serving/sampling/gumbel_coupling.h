// Sampling in which a request's noise at a position is fixed before any model is asked: the token
// is the one whose exponential clock rings first, E(x) / p(x), with E(x) exponential and a pure
// function of (seed, position, x). This is a draw from p (the exponential race, equal to the
// Gumbel-max trick). Its worth: the LLM's token no longer depends on how it was drafted, so answers
// of a seed are the same with any tree or none; and a drafter that runs the same race on its own
// distribution usually has the same winner (Daliri, Musco, Suresh 2024, "Coupling without
// communication and drafter-invariant speculative decoding").
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "serving/sampling/distribution.h"
#include "serving/sampling/counter_rng.h"
#include "serving/sampling/vocab_simd.h"

namespace espalier {

// The clocks of one position. There is one for each token of a vocabulary of 10^5, so a token costs
// one mixing of 64 bits (SplitMix64: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number
// generators"), from where Philox says that the position begins.
class ExponentialClocks {
 public:
  ExponentialClocks(uint64_t seed, uint64_t position) {
    const PhiloxBlock block =
        Philox(seed, position, static_cast<uint64_t>(RngStream::kCoupled) << 56);
    begin_ = (static_cast<uint64_t>(block.word[0]) << 32) | block.word[1];
  }

  // In [0, 1) with 52 bits; never above E.
  double Uniform(int token) const {
    uint64_t z = begin_ + (static_cast<uint64_t>(token) + 1) * kClockStep;
    z = (z ^ (z >> 30)) * kClockMix[0];
    z = (z ^ (z >> 27)) * kClockMix[1];
    return std::bit_cast<double>(((z ^ (z >> 31)) >> 12) | kClockOne) - 1;
  }
  // E(x).
  double Of(int token) const { return -std::log1p(-Uniform(token)); }
  uint64_t begin() const { return begin_; }

 private:
  uint64_t begin_;
};

// The first `most` tokens whose clocks ring. Weights are probabilities up to a factor that all have
// in common.
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
    // Nearly all tokens are behind by this alone.
    const bool full = first_.size() == most_;
    if (full && clocks_.Uniform(token) >= first_.back().rings * weight) return;
    const double rings = clocks_.Of(token) / weight;
    if (full && rings >= first_.back().rings) return;
    const auto later = [](double time, const Entry& entry) { return time < entry.rings; };
    first_.insert(std::upper_bound(first_.begin(), first_.end(), rings, later), {token, rings});
    if (first_.size() > most_) first_.pop_back();
  }
  // The tokens from `first` on.
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
  // In the order in which they ring.
  absl::Span<const Entry> first() const { return first_; }
  int winner() const { return first_.empty() ? 0 : first_[0].token; }

 private:
  // Tokens that are looked at together: few as long as most of them are before the last entry.
  static constexpr size_t kFirstTogether = 16, kMostTogether = 256;

  const ExponentialClocks clocks_;
  const size_t most_;
  size_t together_ = kFirstTogether;
  std::vector<Entry> first_;
};

// The token that decides the position. Never one of probability zero.
inline int CoupledSample(const Distribution& p, uint64_t seed, uint64_t position) {
  ExponentialRace race(seed, position);
  for (int token = 0; token < static_cast<int>(p.size()); ++token) race.Enter(token, p[token]);
  return race.winner();
}

}  // namespace espalier
