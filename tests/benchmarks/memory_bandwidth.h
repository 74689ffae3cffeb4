// How fast threads of this machine read memory: the yardstick of decoding, which reads all weights
// for every token.
#pragma once

#include <cstdint>
#include <memory>

namespace espalier {

// An array of `bytes` that `threads` threads read together: those that compute the kernels which
// the calling thread runs (ops/cpu/threading/parallel.h).
class ReadBandwidthArray {
 public:
  ReadBandwidthArray(int threads, int64_t bytes);

  // Bytes per second of reading all of it `times` times.
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

// The best of several passes over such an array, each of a GiB at least, as in STREAM. An array
// that fits a cache measures that cache.
double ReadBandwidth(int threads, int64_t bytes);

}  // namespace espalier
