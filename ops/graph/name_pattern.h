// Patterns of names of parameters, as in TrainingSpec.freeze.
#pragma once

#include "absl/strings/string_view.h"

namespace espalier {

// Whether `name` matches `pattern`, in which "*" stands for any characters.
bool MatchesPattern(absl::string_view pattern, absl::string_view name);

}  // namespace espalier
