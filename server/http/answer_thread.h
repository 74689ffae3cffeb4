// A thread that writes large answers, so that the engine's, for which all streams wait, does not.
#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace espalier {

// Thread-safe.
class AnswerThread {
 public:
  AnswerThread();
  // Runs what waits. Not from work.
  ~AnswerThread();

  // Returns at once; `work` runs on the thread, in the order of the calls. It must not hold on to
  // the thread itself.
  void Run(std::function<void()> work);

 private:
  void Work();
  bool HasNews() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !waiting_.empty();
  }

  absl::Mutex mutex_;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace espalier
