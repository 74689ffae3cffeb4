// Flags that choose what training an ONNX model minimizes and reports.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/flags.h"
#include "espalier/v1/graph.pb.h"

namespace espalier {

// --loss, --loss-output and --metrics.
std::vector<FlagSpec> LossFlags();

// Returns the flags' losses and metrics, or their defaults. Returns usage errors that name the
// flag, the value and what is accepted.
absl::StatusOr<v1::Objective> ChooseObjective(const ParsedFlags& flags);

}  // namespace espalier
