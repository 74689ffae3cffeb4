// Repeats what may succeed later, after pauses that grow and differ between callers.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace espalier::s3 {

// Time and chance, so that tests neither wait nor depend on luck. Thread-safe.
class Pauses {
 public:
  virtual ~Pauses() = default;
  virtual absl::Time Now() = 0;
  virtual void Sleep(absl::Duration duration) = 0;
  virtual double Chance() = 0;  // evenly in [0, 1)
};

std::unique_ptr<Pauses> NewSystemPauses();

// The pause before attempt n + 1 is a random part of min(longest, first * 2^n): exponential backoff
// with full jitter, so that many workers that failed together do not come back together.
struct RetryPolicy {
  absl::Duration first = absl::Milliseconds(100);
  absl::Duration longest = absl::Seconds(10);
  absl::Duration total = absl::Minutes(2);  // no attempt begins later than this
  int attempts = 12;
};

// Calls `attempt` until it does not return Unavailable. The last error tells of the attempts. Once
// `cancelled`, if given, is true no pause is waited for and no attempt begins.
absl::Status Retry(const RetryPolicy& policy, Pauses& pauses,
                   const std::function<absl::Status()>& attempt,
                   const std::atomic<bool>* cancelled = nullptr);

}  // namespace espalier::s3
