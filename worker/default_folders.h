// Where a worker keeps files if --cache-dir does not say it: the folders of systemd's service,
// those of a daemon if it is root's, otherwise the user's.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"

namespace espalier {

struct DefaultFolders {
  // Empty: none is known.
  std::string cache;  // may be emptied at any time
  std::string state;  // outlives reboots
};

// `environment` returns the value of a variable, or nothing. `host`: a user's home is often shared
// by hosts, each of which needs folders of its own.
DefaultFolders ChooseDefaultFolders(
    const std::function<std::string(const std::string&)>& environment, bool is_root,
    const std::string& host);

// Makes a folder if it is missing. Returns why this process cannot write to it.
absl::Status MakeWritableFolder(const std::string& path);

}  // namespace espalier
