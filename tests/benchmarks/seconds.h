#pragma once

#include <chrono>

namespace espalier {

// Monotonic.
inline double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace espalier
