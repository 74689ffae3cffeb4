// Thread pool for request handlers, so that the threads that serve connections never block.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace espalier {

// Thread-safe.
class HandlerPool {
 public:
  // `threads` 0: the number of cores, but at least 4, since a handler may block. At most
  // `max_waiting` handlers are queued, holding at most `max_bytes` in total.
  HandlerPool(int threads, size_t max_waiting, size_t max_bytes);
  ~HandlerPool();

  // Queues `handler`, which holds `bytes`; handlers start in the order of Add. Returns false and
  // never calls it if the queue is full or the pool has stopped.
  bool Add(size_t bytes, std::function<void()> handler);
  // Drops queued handlers and blocks until running ones have returned. Idempotent. Must not be
  // called from a handler.
  void Stop();

 private:
  struct Waiting {
    size_t bytes = 0;
    std::function<void()> handler;
  };

  void Work();
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopped_ || !waiting_.empty();
  }

  const size_t max_waiting_, max_bytes_;
  absl::Mutex mutex_;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of all queued handlers
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace espalier
