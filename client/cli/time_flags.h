// Flags that name durations and times.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/cli/flags.h"

namespace espalier {

// Returns the duration that a flag names: "90m", "1h30m", "2d12h"; "0" is none. UsageError for what
// is none, infinite or negative, and for a number without a unit.
absl::StatusOr<absl::Duration> DurationFlag(const std::string& flag, absl::string_view text);

// Returns the time that a flag names: a duration before `now`, or a date and perhaps a time, in the
// local zone: "2026-11-29", "2026-11-29 18:00", "2026-11-29T18:00:30". UsageError for anything
// else.
absl::StatusOr<absl::Time> TimeFlag(const std::string& flag, absl::string_view text,
                                    absl::Time now);

// Sets the two times, in milliseconds since 1970, by --since and --until, as far as they are given.
absl::Status ReadTimeRange(const ParsedFlags& flags, const std::function<void(int64_t)>& set_from,
                           const std::function<void(int64_t)>& set_before);

}  // namespace espalier
