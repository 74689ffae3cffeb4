// Who may read the data folder.
#pragma once

#include <string>

namespace espalier {

// Takes a data folder that this user's earlier releases, or mkdir, left open. Files in it are made
// with the process's umask.
void CloseToOthers(const std::string& folder);

}  // namespace espalier
