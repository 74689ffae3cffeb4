// Log levels by name.
#pragma once

#include <spdlog/common.h>

#include <string>

#include "absl/status/statusor.h"

namespace espalier {

inline constexpr char kLogLevels[] = "trace, debug, info, warn, error, critical or off";

// Returns InvalidArgument listing the levels.
absl::StatusOr<spdlog::level::level_enum> ParseLogLevel(const std::string& name);

}  // namespace espalier
