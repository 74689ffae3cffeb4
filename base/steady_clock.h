// The clock of leases: a step of the system's clock must not end them.
#pragma once

#include <time.h>

#include "base/clock.h"

namespace espalier {

// Time since the machine's start, as after 1970: for differences only. Nobody sets it, and it goes
// on while the machine is suspended.
class SteadyClock : public Clock {
 public:
  absl::Time Now() const override {
    timespec now = {};
    clock_gettime(CLOCK_BOOTTIME, &now);
    return absl::TimeFromTimespec(now);
  }
};

}  // namespace espalier
