// Memory limit that several devices of one process share.
#pragma once

#include <atomic>
#include <cstdint>

namespace espalier {

// Thread-safe.
class MemoryBudget {
 public:
  // REQUIRES: limit > 0.
  explicit MemoryBudget(int64_t limit) : limit_(limit) {}

  // Reserves `bytes`; returns false if fewer are left. Return gives them back.
  bool Take(int64_t bytes) {
    // Programs created concurrently must not reserve the same bytes.
    int64_t used = used_;
    do {
      if (bytes > limit_ - used) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes));
    return true;
  }
  void Return(int64_t bytes) { used_ -= bytes; }

  int64_t limit() const { return limit_; }
  int64_t left() const { return limit_ - used_; }

 private:
  const int64_t limit_;
  std::atomic<int64_t> used_{0};
};

}  // namespace espalier
