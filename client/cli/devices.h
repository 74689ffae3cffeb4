// Hypothetical devices to plan for: --devices, --device-preset.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "client/cli/flags.h"
#include "espalier/v1/plan.pb.h"

namespace espalier {

std::vector<FlagSpec> DeviceFlags();
// Leaves `request` unchanged if no flag is given: the plan is then for the live workers.
absl::Status FillDevices(const ParsedFlags& flags, v1::PlanRequest* request);

}  // namespace espalier
