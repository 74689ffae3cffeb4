// How far ahead of the ranks a requested checkpoint is named (attempt_requested_checkpoint.cc).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/time/time.h"

namespace espalier {

// Returns in how many steps the fastest rank is `underway` later, and at least one. `before` and
// `after`: the steps that it said it had done, `between` apart. A rank that has done none of this
// run yet says 0, whatever the run's first step.
inline int64_t CheckpointLead(int64_t before, int64_t after, int64_t first_step,
                              absl::Duration between, absl::Duration underway) {
  const int64_t ran = std::max(after, first_step) - std::max(before, first_step);
  return 1 + static_cast<int64_t>(std::ceil(static_cast<double>(ran) * (underway / between)));
}

}  // namespace espalier
