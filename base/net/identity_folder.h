// A folder of files that belong together, such as a key and its certificate, which are replaced at
// once: a reader, or a process that starts after a crash, finds all old or all new ones.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"

namespace espalier {

// Makes "`folder`/current" a folder with exactly these files (name to content), for this user only
// and durable. `folder` must exist; what "current" was before is removed.
absl::Status WriteIdentity(const std::string& folder,
                           const std::map<std::string, std::string>& files);
// Path of a file of it.
std::string IdentityPath(const std::string& folder, const std::string& name);

}  // namespace espalier
