// A monotonic clock.
#pragma once

#include <chrono>

namespace espalier {

// Returns seconds since an arbitrary origin.
inline double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace espalier
