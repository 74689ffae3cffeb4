// The keys that callers show as "Authorization: Bearer KEY": clients and workers to the
// coordinator, the coordinator to its workers.
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

  // Unauthenticated unless the header shows one of the keys.
  absl::Status Check(const std::string& authorization) const;

  // The one that the holder of the file shows to others.
  const std::string& first() const { return keys_.front(); }

 private:
  std::vector<std::string> keys_;
};

}  // namespace espalier
