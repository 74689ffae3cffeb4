// The order of examples: a pure function of (seed, epoch, position), without a table.
#pragma once

#include <cstdint>

namespace espalier {

// The example at `position` (0 <= position < size) of the epoch: a bijection of [0, size) for every
// (seed, epoch). A four-round Feistel network over the smallest even number of bits that holds
// `size`, with Philox as round function; results beyond `size` walk on (Black and Rogaway, "Ciphers
// with arbitrary finite domains", CT-RSA 2002).
int64_t ShuffledIndex(uint64_t seed, int64_t epoch, int64_t size, int64_t position);

}  // namespace espalier
