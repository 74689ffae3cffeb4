// Flags that name ranges of steps.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

// Steps [first, end), as in requests.
struct StepRange {
  int64_t first = 0;
  int64_t end = 0;  // 0: no end
};

// "100:200", "100:", ":200", or one step "100". UsageError, naming the flag, for anything else and
// for a range without a step.
absl::StatusOr<StepRange> StepRangeFlag(const std::string& flag, absl::string_view text);

}  // namespace espalier
