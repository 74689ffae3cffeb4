// Sampling in which a request's noise at a position is fixed before any model is asked: the token
// is the one whose exponential clock rings first, E(x) / p(x), with E(x) exponential and a pure
// function of (seed, position, x). This is a draw from p (the exponential race, equal to the
// Gumbel-max trick). Its worth: the LLM's token no longer depends on how it was drafted, so answers
// of a seed are the same with any tree or none; and a drafter that runs the same race on its own
// distribution usually has the same winner (Daliri, Musco, Suresh 2024, "Coupling without
// communication and drafter-invariant speculative decoding").
#pragma once

#include <cmath>
#include <cstdint>

#include "serving/sampling/distribution.h"
#include "serving/sampling/noise.h"

namespace espalier {

// E(x) at this position.
inline double SharedClock(uint64_t seed, uint64_t position, int token) {
  return -std::log1p(
      -RequestUniform(seed, NoiseStream::kShared, 0, position, static_cast<uint64_t>(token)));
}

// The token that decides the position. Never one of probability zero.
inline int SharedChoice(const Distribution& p, uint64_t seed, uint64_t position) {
  int best = -1;
  double first = 0;
  for (int token = 0; token < static_cast<int>(p.size()); ++token) {
    if (p[token] <= 0) continue;
    const double rings = SharedClock(seed, position, token) / p[token];
    if (best >= 0 && rings >= first) continue;
    best = token;
    first = rings;
  }
  return best < 0 ? 0 : best;
}

}  // namespace espalier
