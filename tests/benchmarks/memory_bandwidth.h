// Measures memory read bandwidth, the upper bound of decoding speed: decoding reads all weights for
// every token.
#pragma once

#include <cstdint>
#include <memory>

namespace espalier {

// An array of `bytes` that `threads` kernel threads of the calling thread read in parallel
// (ops/cpu/threading/parallel.h).
class ReadBandwidthArray {
 public:
  ReadBandwidthArray(int threads, int64_t bytes);

  // Reads the array `times` times and returns bytes per second.
  double Read(int64_t times = 1);

 private:
  struct Free {
    void operator()(char* data) const;
  };

  const int threads_;
  const int64_t pieces_;
  std::unique_ptr<char, Free> data_;
  uint64_t total_ = 0;
};

// Returns the best bandwidth of several passes of at least 1 GiB each, as in STREAM. With an array
// that fits into a cache, measures that cache.
double ReadBandwidth(int threads, int64_t bytes);

}  // namespace espalier
