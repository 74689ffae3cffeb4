#include "base/log/log_format.h"

#include <spdlog/details/log_msg.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace espalier {
namespace {

std::string Line(const std::string& text) {
  spdlog::memory_buf_t out;
  LogFormat()->clone()->format({"name", spdlog::level::warn, text}, out);
  return {out.data(), out.size()};
}

TEST(LogFormat, MessageIsOneLineWithoutColors) {
  EXPECT_THAT(Line("model x is served"),
              ::testing::MatchesRegex("....-..-..T..:..:..\\....Z warning model x is served\n"));
  EXPECT_THAT(Line("a\n2026-01-01T00:00:00.000Z error b\r\x1b[31m\x7f\xc2\x9b\t"),
              ::testing::EndsWith("a\\x0a2026-01-01T00:00:00.000Z error b\\x0d\\x1b[31m\\x7f\xc2"
                                  "\\x9b\\x09\n"));
  EXPECT_THAT(Line("Ä \\n \"é\""), ::testing::EndsWith(" Ä \\n \"é\"\n"));
}

}  // namespace
}  // namespace espalier
