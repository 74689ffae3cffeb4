// Devices to plan for that are not there: --devices, --device-preset.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "client/cli/flags.h"
#include "espalier/v1/plan.pb.h"

namespace espalier {

std::vector<FlagSpec> DeviceFlags();
// Leaves `request` alone if none of the flags is given: then the workers that have joined count.
absl::Status FillDevices(const ParsedFlags& flags, v1::PlanRequest* request);

}  // namespace espalier
