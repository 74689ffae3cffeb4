// The programs that a launch copies to hosts.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace espalier {

// A tar file, and the SHA-256 of its content, by which hosts that have it are known.
struct Bundle {
  std::string file;
  std::string key;
  bool temporary = false;  // to be removed
};

// Returns the bundle of a file or folder; if `given` is empty, that of which this program is part.
// FailedPrecondition if it is part of none.
absl::StatusOr<Bundle> FindBundle(const std::string& given, const std::string& program);

}  // namespace espalier
