// Flags for what is kept of a job, so that it can be replayed.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "client/cli/flags.h"
#include "espalier/v1/training.pb.h"

namespace espalier {

std::vector<FlagSpec> RecordFlags();
// Sets spec.record. Usage errors name the flag and what is accepted.
absl::Status FillRecord(const ParsedFlags& flags, v1::TrainingSpec* spec);

}  // namespace espalier
