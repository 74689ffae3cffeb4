// How a step is made to fit its devices, by TFLMS's names.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "client/cli/flags.h"
#include "espalier/v1/plan.pb.h"

namespace espalier {

std::vector<FlagSpec> MemoryFlags();
// Sets search.memory if one of them is given: an imported plan has its own. Usage errors name the
// flag.
absl::Status FillMemory(const ParsedFlags& flags, v1::SearchOptions* search);

}  // namespace espalier
