// The keys that clients show as "Authorization: Bearer KEY".
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace espalier {

// Immutable.
class ApiKeys {
 public:
  // One key per line; blank lines and lines that begin with # are skipped. InvalidArgument naming
  // the file if it cannot be read, is empty, or holds a key shorter than 16 characters.
  static absl::StatusOr<ApiKeys> Read(const std::string& path);

  // Unauthenticated unless the header shows one of the keys. `method` is "Service/Method" or
  // "METHOD /route". The RPCs by which workers join, report and read artifacts need none, for
  // workers have no key.
  absl::Status Check(const std::string& method, const std::string& authorization) const;

 private:
  std::vector<std::string> keys_;
};

}  // namespace espalier
