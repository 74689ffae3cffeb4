// How a step is made to fit its devices, by TFLMS's names.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "client/cli/flags.h"
#include "proto/plan.pb.h"

namespace espalier {

std::vector<FlagSpec> MemoryFlags();
// Usage errors name the flag.
absl::Status FillMemory(const ParsedFlags& flags, proto::MemoryOptions* memory);

}  // namespace espalier
