// Flags that choose a served model, its SSMs and how they run; for `serve` and other commands that
// load models.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/flags.h"
#include "espalier/v1/inference.pb.h"

namespace espalier {

std::vector<FlagSpec> ServingFlags();

// Parses "1,1,3,1,1": children per depth of a token tree; empty text: none.
absl::StatusOr<std::vector<int>> ParseExpansion(const std::string& text);

// Fills in everything except the LLM and its name. Usage errors name the flag.
absl::Status FillServing(const ParsedFlags& flags, v1::ServeModelRequest* request);

}  // namespace espalier
