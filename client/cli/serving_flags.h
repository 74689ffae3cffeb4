// The flags that say which models work together and how, of `serve` and of whoever loads models as
// it does.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/flags.h"
#include "espalier/v1/inference.pb.h"

namespace espalier {

std::vector<FlagSpec> ServingFlags();

// "1,1,3,1,1": children per depth of a token tree; empty text: none.
absl::StatusOr<std::vector<int>> ParseExpansion(const std::string& text);

// All but the LLM and its name. Usage errors name the flag.
absl::Status FillServing(const ParsedFlags& flags, v1::ServeModelRequest* request);

}  // namespace espalier
