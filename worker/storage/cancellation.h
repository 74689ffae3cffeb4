// That an attempt is over: what waits for a store on its behalf ends.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace espalier {

// Thread-safe.
class Cancellation {
 public:
  // For what looks at it now and then.
  std::shared_ptr<const std::atomic<bool>> flag() const { return flag_; }

  void Cancel() {
    *flag_ = true;
    absl::MutexLock lock(&mutex_);
    for (const std::function<void()>& end : calls_) end();
  }

  // A call that waits. `end`, which must not block, is called once if it is cancelled before the
  // destruction of this, perhaps at once. `cancellation` may be null.
  class Call {
   public:
    Call(std::shared_ptr<Cancellation> cancellation, std::function<void()> end)
        : cancellation_(std::move(cancellation)) {
      if (cancellation_ == nullptr) return;
      absl::MutexLock lock(&cancellation_->mutex_);
      if (*cancellation_->flag_) end();
      place_ = cancellation_->calls_.insert(cancellation_->calls_.end(), std::move(end));
    }
    ~Call() {
      if (cancellation_ == nullptr) return;
      absl::MutexLock lock(&cancellation_->mutex_);
      cancellation_->calls_.erase(place_);
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    const std::shared_ptr<Cancellation> cancellation_;
    std::list<std::function<void()>>::iterator place_;
  };

 private:
  const std::shared_ptr<std::atomic<bool>> flag_ = std::make_shared<std::atomic<bool>>(false);
  absl::Mutex mutex_;
  std::list<std::function<void()>> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
