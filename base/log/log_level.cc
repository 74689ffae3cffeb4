#include "base/log/log_level.h"

#include "absl/strings/str_cat.h"

namespace espalier {

absl::StatusOr<spdlog::level::level_enum> ParseLogLevel(const std::string& name) {
  // spdlog returns `off` for an unknown name.
  const spdlog::level::level_enum level = spdlog::level::from_str(name);
  if (level != spdlog::level::off || name == "off") return level;
  return absl::InvalidArgumentError(
      absl::StrCat("--log-level=", name, ": expected ", kLogLevels, ", in lower case"));
}

}  // namespace espalier
