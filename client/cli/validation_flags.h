// Flags of validation during training and of early stopping.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "client/cli/flags.h"
#include "espalier/v1/training.pb.h"

namespace espalier {

// --validation, --validate-every, --early-stop and --keep-best.
std::vector<FlagSpec> ValidationFlags();
// Fills in spec.validation, except its dataset, and spec.early_stopping; neither without one of the
// flags.
absl::Status FillValidation(const ParsedFlags& flags, v1::TrainingSpec* spec);

}  // namespace espalier
