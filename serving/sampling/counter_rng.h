// Counter-based random numbers of a request (Philox): each is a pure function of (request seed,
// stream, source, position, index). So the samples of a request do not depend on the batch, the
// order of requests or preemption. Drafting, acceptance and residual sampling use separate streams:
// otherwise, the acceptance test of a proposal would be correlated with the draw of the proposal.
#pragma once

#include <cstdint>

#include "ops/kernel/philox.h"

namespace espalier {

enum class RngStream : uint64_t {
  kDraft = 1,
  kAcceptance = 2,
  kResidual = 3,
  kCoupled = 4,
  kChoice = 5
};

// Returns a uniform number in [0, 1) with 53 bits. `position`: of the token, or of the root of its
// tree. `source`: the SSM (below 2^16). `index`: distinguishes draws for one position, or nodes of
// a tree.
inline double RequestUniform(uint64_t seed, RngStream stream, uint64_t source, uint64_t position,
                             uint64_t index) {
  const uint64_t high = (static_cast<uint64_t>(stream) << 56) | (source << 40) | index;
  const PhiloxBlock block = Philox(seed, position, high);
  const uint64_t bits = (static_cast<uint64_t>(block.word[0] >> 5) << 26) | (block.word[1] >> 6);
  return static_cast<double>(bits) * 0x1.0p-53;
}

// Returns the seed of one of several choices (OpenAI's n) of a request; the first one has the
// request's seed. It is hashed, because seeds that differ by a constant may be seeds of other
// requests.
inline uint64_t ChoiceSeed(uint64_t seed, uint64_t choice) {
  if (choice == 0) return seed;
  const PhiloxBlock block = Philox(seed, choice, static_cast<uint64_t>(RngStream::kChoice) << 56);
  return (static_cast<uint64_t>(block.word[0]) << 32) | block.word[1];
}

// Returns the number that samples the token at `position` where no proposal was accepted.
inline double ResidualUniform(uint64_t seed, uint64_t position) {
  return RequestUniform(seed, RngStream::kResidual, 0, position, 0);
}

}  // namespace espalier
