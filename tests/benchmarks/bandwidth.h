// How fast threads of this machine read memory: the yardstick of decoding, which reads all weights
// for every token.
#pragma once

#include <cstdint>

namespace espalier {

// Bytes per second that `threads` threads read together, each its own part of one array of `bytes`,
// again and again; the best of several passes, as in STREAM. An array that fits a cache measures
// that cache.
double ReadBandwidth(int threads, int64_t bytes);

}  // namespace espalier
