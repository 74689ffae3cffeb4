#include "client/cli/time_flags.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

TEST(TimeFlags, Durations) {
  EXPECT_EQ(*DurationFlag("f", "90m"), absl::Minutes(90));
  EXPECT_EQ(*DurationFlag("f", "1h30m"), absl::Minutes(90));
  EXPECT_EQ(*DurationFlag("f", "1d12h"), absl::Hours(36));
  EXPECT_EQ(*DurationFlag("f", "0.5d"), absl::Hours(12));
  EXPECT_EQ(*DurationFlag("f", "0"), absl::ZeroDuration());
  for (const char* bad : {"", "2", "-2h", "inf", "d", "2days", "h", "1e400h", "\x1b[2J"}) {
    const auto read = DurationFlag("time-limit", bad);
    EXPECT_TRUE(IsUsageError(read.status())) << bad;
    EXPECT_NE(read.status().message().find("--time-limit"), std::string::npos);
  }
}

TEST(TimeFlags, Times) {
  const absl::TimeZone zone = absl::LocalTimeZone();
  const absl::Time now = absl::FromCivil(absl::CivilSecond(2026, 11, 29, 12, 0, 0), zone);
  EXPECT_EQ(*TimeFlag("f", "2h", now), now - absl::Hours(2));
  EXPECT_EQ(*TimeFlag("f", "7d", now), now - absl::Hours(7 * 24));
  EXPECT_EQ(*TimeFlag("f", "2026-11-29", now), now - absl::Hours(12));
  EXPECT_EQ(*TimeFlag("f", "2026-11-29 11:30", now), now - absl::Minutes(30));
  EXPECT_EQ(*TimeFlag("f", "2026-11-29T11:59:50", now), now - absl::Seconds(10));
  for (const char* bad : {"", "yesterday", "2026-13-01", "11:30", "5"}) {
    EXPECT_TRUE(IsUsageError(TimeFlag("since", bad, now).status())) << bad;
  }
}

}  // namespace
}  // namespace espalier
