// Options of sbatch that a batch file passes on as they are.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/flags.h"

namespace espalier {

// The common ones by name (--qos, ...), and --sbatch=OPTION[=VALUE] for any other.
std::vector<FlagSpec> SbatchFlags();

// Returns a usage error for a value that sbatch would end early in a line #SBATCH.
absl::Status CheckSbatchValue(const std::string& flag, const std::string& value);

// An option and its value; empty: it has none.
using SbatchOption = std::pair<std::string, std::string>;

// Returns those that are given, in the order in which they are written. Options that the batch file
// sets itself, or that do not go with it, are usage errors, also if abbreviated.
absl::StatusOr<std::vector<SbatchOption>> ReadSbatchOptions(const ParsedFlags& flags);

}  // namespace espalier
