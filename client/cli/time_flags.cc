#include "client/cli/time_flags.h"

#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

std::optional<absl::Duration> ReadDuration(absl::string_view text) {
  absl::Duration days;
  if (const size_t d = text.find('d'); d != text.npos) {
    double count = 0;
    if (!absl::SimpleAtod(text.substr(0, d), &count)) return std::nullopt;
    days = absl::Hours(24) * count;
    text.remove_prefix(d + 1);
    if (text.empty()) text = "0";
  }
  absl::Duration rest;
  if (!absl::ParseDuration(text, &rest)) return std::nullopt;
  const absl::Duration sum = days + rest;
  if (sum < absl::ZeroDuration() || sum == absl::InfiniteDuration()) return std::nullopt;
  return sum;
}

}  // namespace

absl::StatusOr<absl::Duration> DurationFlag(const std::string& flag, absl::string_view text) {
  if (const std::optional<absl::Duration> duration = ReadDuration(text); duration.has_value()) {
    return *duration;
  }
  return UsageError(absl::StrCat("--", flag, " is \"", Printable(text),
                                 "\"; accepted: a duration such as 90s, 30m, 2h or 1d12h"));
}

absl::StatusOr<absl::Time> TimeFlag(const std::string& flag, absl::string_view text,
                                    absl::Time now) {
  if (const std::optional<absl::Duration> ago = ReadDuration(text); ago.has_value()) {
    return now - *ago;
  }
  for (const char* format : {"%Y-%m-%d%ET%H:%M:%S", "%Y-%m-%d%ET%H:%M", "%Y-%m-%d %H:%M:%S",
                             "%Y-%m-%d %H:%M", "%Y-%m-%d"}) {
    absl::Time time;
    if (absl::ParseTime(format, text, absl::LocalTimeZone(), &time, nullptr)) return time;
  }
  return UsageError(absl::StrCat("--", flag, " is \"", Printable(text),
                                 "\"; accepted: a duration before now (90m, 2h, 7d), or a date "
                                 "such as 2026-11-29 or \"2026-11-29 18:00\""));
}

absl::Status ReadTimeRange(const ParsedFlags& flags, const std::function<void(int64_t)>& set_from,
                           const std::function<void(int64_t)>& set_before) {
  for (const auto& [flag, set] : {std::pair("since", &set_from), std::pair("until", &set_before)}) {
    if (!flags.Has(flag)) continue;
    const absl::StatusOr<absl::Time> time = TimeFlag(flag, flags.Text(flag), absl::Now());
    if (!time.ok()) return time.status();
    (*set)(absl::ToUnixMillis(*time));
  }
  return absl::OkStatus();
}

}  // namespace espalier
