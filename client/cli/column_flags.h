// The flag that names the columns of a dataset for the inputs of a graph.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/flags.h"

namespace espalier {

FlagSpec ColumnFlag();
// Returns the columns by input. A usage error names the flag.
absl::StatusOr<std::map<std::string, std::string>> ColumnsOf(const ParsedFlags& flags);

}  // namespace espalier
