// Flags of the plan search, named as in FlexFlow where it has them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/flags.h"
#include "espalier/v1/plan.pb.h"

namespace espalier {

// --batch-size and search flags, shared by train and plan.
std::vector<FlagSpec> SearchFlags();
// Reads a plan written by --export-strategy. Usage errors name the file.
absl::StatusOr<v1::Plan> ReadPlan(const std::string& path);
absl::StatusOr<v1::SearchOptions> MakeSearch(const ParsedFlags& flags);
constexpr int64_t kDefaultBatchSize = 16;

}  // namespace espalier
