// Threads that run the handlers of requests, so that those which serve connections never wait for
// one.
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
  // `threads` 0: as many as the machine has cores, but no less than 4, since a handler may wait.
  // No more than `max_waiting` calls wait for a thread, and together they hold no more than
  // `max_bytes`.
  HandlerPool(int threads, size_t max_waiting, size_t max_bytes);
  ~HandlerPool();  // stops

  // Calls `handler`, which holds so many bytes, on a thread of the pool, in the order of Add.
  // False, and it is never called, if too many wait or the pool has stopped.
  bool Add(size_t bytes, std::function<void()> handler);
  // Throws away what waits and blocks until what runs has returned. Idempotent; not from a handler.
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
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of all that wait
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace espalier
