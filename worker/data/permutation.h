// Shuffled order of examples as a pure function of (seed, epoch, position), without a table.
#pragma once

#include <cstdint>

namespace espalier {

// Returns the example at `position` (0 <= position < size) of the epoch: a bijection of [0, size)
// for every (seed, epoch). A four-round Feistel network, with Philox as round function, on the
// smallest even number of bits that holds `size`; results beyond `size` are encrypted again (cycle
// walking: Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002).
int64_t ShuffledIndex(uint64_t seed, int64_t epoch, int64_t size, int64_t position);

}  // namespace espalier
