#include "client/cli/time_text.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace espalier {
namespace {

std::string LocalFormat(const char* format, int64_t unix_ms) {
  return absl::FormatTime(format, absl::FromUnixMillis(unix_ms), absl::LocalTimeZone());
}

}  // namespace

std::string LocalTime(int64_t unix_ms) {
  return unix_ms == 0 ? "" : LocalFormat("%Y-%m-%d %H:%M:%S", unix_ms);
}

std::string LocalZone(int64_t unix_ms) {
  const std::string name = LocalFormat("%Z", unix_ms);
  // A zone without a name has its offset there.
  if (name == "UTC" || absl::StartsWith(name, "+") || absl::StartsWith(name, "-")) {
    return name == "UTC" ? name : absl::StrCat("UTC", LocalFormat("%Ez", unix_ms));
  }
  return absl::StrCat(name, " (UTC", LocalFormat("%Ez", unix_ms), ")");
}

std::string LogTimes::ZoneLine(int64_t unix_ms) {
  if (unix_ms == 0) return "";
  std::string zone = LocalZone(unix_ms);
  if (zone == zone_) return "";
  zone_ = std::move(zone);
  return absl::StrCat("times are in ", zone_, "\n");
}

std::string LogTimes::Of(int64_t unix_ms) const {
  if (unix_ms != 0) return LocalTime(unix_ms) + "  ";
  return zone_.empty() ? "" : std::string(LocalTime(1).size() + 2, ' ');
}

}  // namespace espalier
