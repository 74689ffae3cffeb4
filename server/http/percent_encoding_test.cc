#include "server/http/percent_encoding.h"

#include "gtest/gtest.h"

namespace espalier {
namespace {

TEST(PercentEncoding, SlashesWithinASegmentStayApartUntilItIsDecoded) {
  struct {
    const char *path, *normalized, *decoded;
  } cases[] = {{"/v1/models/a", "/v1/models/a", "/v1/models/a"},
               {"/v1/%6d%6Fdels/a%20b", "/v1/models/a b", "/v1/models/a b"},
               {"/v1/models/org%2Fname", "/v1/models/org%2Fname", "/v1/models/org/name"},
               {"/v1/models/org%2fname", "/v1/models/org%2fname", "/v1/models/org/name"},
               {"/%E6%A8%A1", "/\xE6\xA8\xA1", "/\xE6\xA8\xA1"},
               // Decoded once.
               {"/%252F", "/%252F", "/%2F"},
               {"/%25%32%46", "/%252F", "/%2F"},
               {"/a+b", "/a+b", "/a+b"}};
  for (const auto& test : cases) {
    EXPECT_TRUE(IsPercentEncoded(test.path)) << test.path;
    EXPECT_EQ(NormalizePath(test.path), test.normalized) << test.path;
    EXPECT_EQ(DecodeSegment(NormalizePath(test.path)), test.decoded) << test.path;
  }
  for (const char* bad : {"/%", "/%2", "/%zz", "/a%2/", "/%00", "/%0a", "/%7F"}) {
    EXPECT_FALSE(IsPercentEncoded(bad)) << bad;
  }
}

}  // namespace
}  // namespace espalier
