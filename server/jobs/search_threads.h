// The threads on which plans are searched: as many as there are cores, however many parts a search
// falls into.
#pragma once

#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace espalier {

// Thread-safe.
class SearchThreads {
 public:
  // `threads`: that may work at one time, the callers' own among them; 0: as many as this process
  // has cores.
  explicit SearchThreads(int threads = 0);

  // Calls work(0) to work(count - 1), each once, and returns when all are done. The caller works
  // itself, and beside it as many threads as are free; so `work` may call this again, and a call
  // never waits for another's. `work` must not throw.
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
