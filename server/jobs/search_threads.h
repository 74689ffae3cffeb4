// A bound on the threads of plan searches: one per core, shared by nested parallel loops.
#pragma once

#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace espalier {

// Thread-safe.
class SearchThreads {
 public:
  // At most `threads` threads run at a time, callers' own included; 0: the number of cores.
  explicit SearchThreads(int threads = 0);

  // Calls work(0) to work(count - 1), each once, and returns when all are done. The calling thread
  // takes part, helped by as many threads as are free. A call never waits for another call's
  // threads, so `work` may call ForEach. REQUIRES: `work` does not throw.
  void ForEach(int count, const std::function<void(int)>& work);

  int threads() const { return threads_; }

 private:
  bool TakeOne();
  void GiveBack();

  const int threads_;
  absl::Mutex mutex_;
  int free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
