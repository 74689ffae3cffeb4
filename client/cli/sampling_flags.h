// The flags of `generate` that say how an answer is chosen and what form it has.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "client/cli/flags.h"
#include "proto/inference.pb.h"

namespace espalier {

std::vector<FlagSpec> SamplingFlags();

// Usage errors name the flag. Ranges are the coordinator's to check where they depend on the model.
absl::Status FillSampling(const ParsedFlags& flags, proto::GenerateRequest* request);

}  // namespace espalier
