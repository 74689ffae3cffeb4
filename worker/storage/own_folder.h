// Folders in --cache-dir that belong to this user alone.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace espalier {

// `parent`, or the system's folder of temporary files if that is empty; made if missing.
std::string CacheParent(const std::string& parent);

// Opens a folder of this user, which is made if missing, without following a link, and closes it to
// others. Returns its descriptor; FailedPrecondition, with the remedy, if what is there belongs to
// another user or is a link.
absl::StatusOr<int> OpenOwnFolder(const std::string& path);

}  // namespace espalier
