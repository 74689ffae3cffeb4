// Flags of the optimizer, its learning-rate schedule, clipping and penalties.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/flags.h"
#include "espalier/v1/training.pb.h"

namespace espalier {

std::vector<FlagSpec> OptimizerFlags();
// `steps`: of the run; 0: unknown.
absl::Status FillOptimizer(const ParsedFlags& flags, int64_t steps, v1::Optimizer* optimizer);

}  // namespace espalier
