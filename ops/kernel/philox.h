// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3" (SC 2011). Runs on host and device. A random number depends only on (seed, node, step,
// index of the element in the whole tensor), never on the split.
#pragma once

#include <math.h>  // host and device

#include <cstdint>

#include "ops/kernel/host_device.h"

namespace espalier {

struct PhiloxBlock {
  uint32_t word[4];
};

ESPALIER_HOST_DEVICE inline PhiloxBlock Philox(uint64_t key, uint64_t counter_low,
                                               uint64_t counter_high) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  uint32_t c0 = static_cast<uint32_t>(counter_low), c1 = static_cast<uint32_t>(counter_low >> 32);
  uint32_t c2 = static_cast<uint32_t>(counter_high), c3 = static_cast<uint32_t>(counter_high >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * c0;
    const uint64_t p1 = static_cast<uint64_t>(0xCD9E8D57u) * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// Uniform in [0, 1) with 24 bits.
ESPALIER_HOST_DEVICE inline float PhiloxUniform(uint64_t seed, uint64_t node_key, uint64_t step,
                                                uint64_t element) {
  const PhiloxBlock block = Philox(seed ^ (node_key * 0x9E3779B97F4A7C15ull), element >> 2, step);
  return static_cast<float>(block.word[element & 3] >> 8) * (1.0f / 16777216.0f);
}

// Normal with mean 0 and standard deviation 1, by Box and Muller from two words of 32 bits; the
// block of an element serves its four neighbours, too.
ESPALIER_HOST_DEVICE inline float NormalOf(const PhiloxBlock& block, uint64_t element) {
  const uint32_t* pair = block.word + (element & 2);
  const float first = (static_cast<float>(pair[0]) + 1.0f) * (1.0f / 4294967296.0f);
  const float angle = static_cast<float>(pair[1]) * (6.283185307f / 4294967296.0f);
  const float radius = sqrtf(-2.0f * logf(first < 1.0f ? first : 1.0f));
  return radius * ((element & 1) != 0 ? sinf(angle) : cosf(angle));
}

}  // namespace espalier
