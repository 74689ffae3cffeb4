// The coordinator's clock, injected so that tests of leases need not wait.
#pragma once

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace espalier {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;

  int64_t NowUnixMillis() const { return absl::ToUnixMillis(Now()); }
};

class SystemClock : public Clock {
 public:
  absl::Time Now() const override { return absl::Now(); }
};

}  // namespace espalier
