// What --job-store says.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

struct JobStoreAddress {
  std::vector<std::string> endpoints;  // of etcd, host:port; empty: SQLite in the data folder
  std::string prefix;                  // of the keys in etcd, with a slash before and none after it
};

// Reads "sqlite" or "etcd://HOST:PORT[,HOST:PORT...][/PREFIX]". Returns InvalidArgument that names
// the flag.
absl::StatusOr<JobStoreAddress> ParseJobStore(absl::string_view text);

}  // namespace espalier
