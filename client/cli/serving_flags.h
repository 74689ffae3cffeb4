// The flags that say which models work together and how, of `serve` and of whoever loads models as
// it does.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "client/cli/flags.h"
#include "proto/inference.pb.h"

namespace espalier {

std::vector<FlagSpec> ServingFlags();

// All but the LLM and its name. Usage errors name the flag.
absl::Status FillServing(const ParsedFlags& flags, proto::ServeModelRequest* request);

}  // namespace espalier
