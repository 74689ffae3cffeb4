// Checks the names of artifacts and of their files.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace espalier {

// Accepts [A-Za-z0-9._-]+ of at most 128 characters that does not start with a dot.
absl::Status CheckArtifactName(const std::string& name);
// Accepts relative paths of at most 255 characters without "..", ".", empty components, backslashes
// and control characters.
absl::Status CheckArtifactFile(const std::string& name);

}  // namespace espalier
