// Pauses between attempts of what may succeed later: each is longer than the one before, up to the
// longest. Who waits decides how.
#pragma once

#include <algorithm>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace espalier {

class Backoff {
 public:
  Backoff(absl::Duration first, absl::Duration longest, double factor = 2)
      : first_(first), longest_(longest), factor_(factor), next_(std::min(first, longest)) {}

  absl::Duration next() const { return next_; }
  // Returns next(), and lengthens it for the time after.
  absl::Duration Take() {
    const absl::Duration pause = next_;
    next_ = std::min(next_ * factor_, longest_);
    return pause;
  }
  // After a success.
  void Reset() { next_ = std::min(first_, longest_); }

 private:
  absl::Duration first_, longest_;
  double factor_;
  absl::Duration next_;
};

// Whether a call that failed so may succeed later as it stands: nobody or an overloaded one
// answered. What was refused stays refused.
inline bool MayPass(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsAborted(status) || absl::IsResourceExhausted(status);
}

}  // namespace espalier
