#include "base/log/log_level.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

TEST(LogLevel, KnownNamesAreLevels) {
  EXPECT_EQ(*ParseLogLevel("debug"), spdlog::level::debug);
  EXPECT_EQ(*ParseLogLevel("info"), spdlog::level::info);
  EXPECT_EQ(*ParseLogLevel("warn"), spdlog::level::warn);
  EXPECT_EQ(*ParseLogLevel("error"), spdlog::level::err);
  EXPECT_EQ(*ParseLogLevel("off"), spdlog::level::off);
}

// These used to turn off all logs.
TEST(LogLevel, UnknownNamesAreRefusedWithTheAcceptedOnes) {
  for (const char* name : {"INFO", "verbose", "", "Off", "2"}) {
    const auto level = ParseLogLevel(name);
    ASSERT_TRUE(absl::IsInvalidArgument(level.status())) << name;
    EXPECT_THAT(level.status().message(), HasSubstr("trace, debug, info, warn, error"));
  }
}

}  // namespace
}  // namespace espalier
