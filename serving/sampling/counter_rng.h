// Random numbers of a request, by counter: each is a pure function of (request seed, stream,
// source, position, index). What a request draws therefore does not depend on the batch it rides
// in, on the order of requests or on preemption. Drafting, acceptance and residual draws have
// streams of their own: were they shared, the test of a proposal would be correlated with the draw
// that made it.
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

// Uniform in [0, 1) with 53 bits. `position` is that of the token being decided, or of the root of
// the tree whose nodes are; `source` tells SSMs apart (below 2^16); `index` tells draws for one
// position apart, or a tree's nodes.
inline double RequestUniform(uint64_t seed, RngStream stream, uint64_t source, uint64_t position,
                             uint64_t index) {
  const uint64_t high = (static_cast<uint64_t>(stream) << 56) | (source << 40) | index;
  const PhiloxBlock block = Philox(seed, position, high);
  const uint64_t bits = (static_cast<uint64_t>(block.word[0] >> 5) << 26) | (block.word[1] >> 6);
  return static_cast<double>(bits) * 0x1.0p-53;
}

// The seed of one of several answers to a prompt; the first one's is the request's. No arithmetic
// with constants, as seeds may be made: then answers of different requests would be the same.
inline uint64_t ChoiceSeed(uint64_t seed, uint64_t choice) {
  if (choice == 0) return seed;
  const PhiloxBlock block = Philox(seed, choice, static_cast<uint64_t>(RngStream::kChoice) << 56);
  return (static_cast<uint64_t>(block.word[0]) << 32) | block.word[1];
}

// What draws the token at `position` where no proposal was accepted.
inline double ResidualUniform(uint64_t seed, uint64_t position) {
  return RequestUniform(seed, RngStream::kResidual, 0, position, 0);
}

}  // namespace espalier
