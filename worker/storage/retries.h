// How long a broken call is tried again.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/backoff.h"
#include "worker/storage/cancellation.h"

namespace espalier {

class Retries {
 public:
  // Gives up after `patience` without progress, and once it is cancelled. `cancellation` may be
  // null.
  Retries(absl::Duration patience, const std::shared_ptr<Cancellation>& cancellation)
      : patience_(patience), cancelled_(cancellation == nullptr ? nullptr : cancellation->flag()) {}

  void Progress() {
    failing_since_ = absl::InfiniteFuture();
    backoff_.Reset();
  }

  // Waits, and returns true, if the call may be tried again.
  bool Again(const absl::Status& status) {
    if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status) &&
        !absl::IsCancelled(status)) {
      return false;
    }
    failing_since_ = std::min(failing_since_, absl::Now());
    if (absl::Now() + backoff_.next() - failing_since_ > patience_) return false;
    const absl::Time until = absl::Now() + backoff_.Take();
    while (absl::Now() < until) {
      if (cancelled_ != nullptr && *cancelled_) return false;
      absl::SleepFor(std::min<absl::Duration>(kLookAgain, until - absl::Now()));
    }
    return true;
  }

 private:
  static constexpr absl::Duration kLookAgain = absl::Milliseconds(50);

  const absl::Duration patience_;
  const std::shared_ptr<const std::atomic<bool>> cancelled_;
  absl::Time failing_since_ = absl::InfiniteFuture();
  Backoff backoff_{absl::Milliseconds(50), absl::Seconds(2)};
};

}  // namespace espalier
