// Files that are there as a whole or not at all.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace espalier {

// Writes a file that only the user may read, and its folder. It outlives a power cut. AlreadyExists
// if it exists and `replace` is false.
absl::Status WriteWholeFile(const std::string& path, const std::string& text, bool replace = true);

}  // namespace espalier
