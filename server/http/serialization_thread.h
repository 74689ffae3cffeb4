// A thread that writes large answers, so that the engine's, for which all streams wait, does not.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace espalier {

// Log-probabilities and tokens whose JSON is written at once.
inline constexpr size_t kMaxInlineSize = 256;

// Thread-safe.
class SerializationThread {
 public:
  SerializationThread();
  // Runs what waits. Not from work.
  ~SerializationThread();

  // Returns at once; `work` runs on the thread, in the order of the calls. It must not hold on to
  // the thread itself.
  void Run(std::function<void()> work);

 private:
  void Work();
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !waiting_.empty();
  }

  absl::Mutex mutex_;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// The steps of one answer, in order: large ones, and those that come behind one, on the thread.
// What is given in one call of Run must be given by the same thread as what came before.
class TaskSequence {
 public:
  // Weak: steps must not hold on to their thread. Null: whoever gives a step takes it.
  explicit TaskSequence(std::weak_ptr<SerializationThread> thread) : thread_(std::move(thread)) {}

  // Calls `step` with copies of `arguments` and with `mutex` held. Does not wait: not even for the
  // mutex, which a step on the thread may hold for long. `step` must hold on to this and to
  // `mutex`.
  template <typename Step, typename... Arguments>
  void Run(bool large, absl::Mutex& mutex, Step step, const Arguments&... arguments) {
    const std::shared_ptr<SerializationThread> thread = thread_.lock();
    if (thread == nullptr) {
      absl::MutexLock lock(&mutex);
      step(arguments...);
    } else if (!large && waiting_ == 0 && mutex.TryLock()) {
      step(arguments...);
      mutex.Unlock();
    } else {
      ++waiting_;
      thread->Run([this, &mutex, step = std::move(step), arguments...] {
        {
          absl::MutexLock lock(&mutex);
          step(arguments...);
        }
        --waiting_;
      });
    }
  }

  // For a step: whether it is taken on the thread.
  bool on_thread() const { return waiting_ > 0; }

 private:
  const std::weak_ptr<SerializationThread> thread_;
  std::atomic<int> waiting_ = 0;  // for the thread, or on it
};

}  // namespace espalier
