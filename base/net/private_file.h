// Files that hold keys.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace espalier {

// Returns InvalidArgument, with the remedy, if other users can read or change the file, which is
// --`flag`'s: it must belong to this user, who alone may read it, or to root, whose group may, too
// (as Kubernetes mounts secrets). A missing file is left to the reader.
absl::Status CheckPrivateFile(const std::string& flag, const std::string& path);

}  // namespace espalier
