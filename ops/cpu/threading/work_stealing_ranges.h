// Distributes indices over threads by work stealing: each thread takes from the front of its own
// range and, when that is empty, from the backs of the others'. A thread that arrives late, or
// never, delays nothing but what it has taken. Every index is handed out exactly once.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

namespace espalier {

class WorkStealingRanges {
 public:
  // Cuts [0, n) into `parts` nearly equal ranges; n < 2^31.
  WorkStealingRanges(int64_t n, int parts) : parts_(parts) {
    if (parts > kFew) {
      many_ = std::make_unique<Range[]>(static_cast<size_t>(parts));
      ranges_ = many_.get();
    }
    for (int64_t p = 0; p < parts; ++p) {
      ranges_[p].ends.store(Pack(n * p / parts, n * (p + 1) / parts), std::memory_order_relaxed);
    }
  }
  WorkStealingRanges(const WorkStealingRanges&) = delete;
  WorkStealingRanges& operator=(const WorkStealingRanges&) = delete;

  // Calls f(begin, end) until no index is left, beginning with range `part`. Thread-safe.
  template <typename F>
  void Drain(int part, const F& f) {
    for (int k = 0; k < parts_; ++k) {
      Range& range = ranges_[(part + k) % parts_];
      while (Taken taken = Take(range, /*front=*/k == 0)) f(taken.begin, taken.end);
    }
  }

 private:
  static constexpr int kFew = 16;

  // A thread takes 1 / kShare of what is left of a range: less toward the end, so that threads
  // finish together (guided scheduling).
  static constexpr int64_t kShare = 8;

  struct alignas(64) Range {
    std::atomic<uint64_t> ends{0};  // begin in the upper half
  };

  static uint64_t Pack(int64_t begin, int64_t end) {
    return static_cast<uint64_t>(begin) << 32 | static_cast<uint64_t>(end);
  }

  struct Taken {
    int64_t begin, end;

    explicit operator bool() const { return begin < end; }
  };

  static Taken Take(Range& range, bool front) {
    uint64_t ends = range.ends.load(std::memory_order_relaxed);
    for (;;) {
      const int64_t begin = ends >> 32, end = static_cast<uint32_t>(ends);
      if (begin >= end) return {0, 0};
      const int64_t some = std::max<int64_t>(1, (end - begin) / kShare);
      const uint64_t rest = front ? Pack(begin + some, end) : Pack(begin, end - some);
      if (!range.ends.compare_exchange_weak(ends, rest, std::memory_order_relaxed)) continue;
      return front ? Taken{begin, begin + some} : Taken{end - some, end};
    }
  }

  const int parts_;
  Range few_[kFew];
  std::unique_ptr<Range[]> many_;
  Range* ranges_ = few_;
};

}  // namespace espalier
