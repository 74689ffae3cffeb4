// Flags that fit a step into device memory, named as in TFLMS.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "client/cli/flags.h"
#include "espalier/v1/plan.pb.h"

namespace espalier {

std::vector<FlagSpec> MemoryFlags();
// Sets search.memory if one of the flags is given; otherwise an imported plan keeps its own. Usage
// errors name the flag.
absl::Status FillMemory(const ParsedFlags& flags, v1::SearchOptions* search);

}  // namespace espalier
