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
  // No more than `max_waiting` calls wait for a thread.
  HandlerPool(int threads, size_t max_waiting);
  ~HandlerPool();  // stops

  // Calls `handler` on a thread of the pool, in the order of Add. False, and it is never called, if
  // too many wait or the pool has stopped.
  bool Add(std::function<void()> handler);
  // Throws away what waits and blocks until what runs has returned. Idempotent; not from a handler.
  void Stop();

 private:
  void Work();
  bool HasNews() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopped_ || !waiting_.empty();
  }

  const size_t max_waiting_;
  absl::Mutex mutex_;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace espalier
