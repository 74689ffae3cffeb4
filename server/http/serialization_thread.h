// A thread that serializes large answers to JSON, so that the engine's thread, for which all
// streams wait, does not.
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

// Up to this many logprobs and tokens are serialized inline.
inline constexpr size_t kMaxInlineSize = 256;

// Thread-safe.
class SerializationThread {
 public:
  SerializationThread();
  // Runs all queued work. Must not be called from `work`.
  ~SerializationThread();

  // Queues `work` and returns at once; work runs in order. It must not own the thread.
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

// Runs the steps of one answer in order: large steps, and those behind one, on the serialization
// thread; others inline. All calls of Run must come from one thread at a time.
class TaskSequence {
 public:
  // Weak, since steps must not own their thread. Null: all steps run inline.
  explicit TaskSequence(std::weak_ptr<SerializationThread> thread) : thread_(std::move(thread)) {}

  // Calls `step` with copies of `arguments` and with `mutex` held. Never blocks, not even on
  // `mutex`, which a step on the thread may hold for long. `step` must keep this object and `mutex`
  // alive.
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

  // For a step: whether it runs on the thread.
  bool on_thread() const { return waiting_ > 0; }

 private:
  const std::weak_ptr<SerializationThread> thread_;
  std::atomic<int> waiting_ = 0;  // queued or running there
};

}  // namespace espalier
