#include "base/net/access_token.h"

#include <string>

#include "base/net/own_address.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const AccessTokenText kToken = {"4f1c9a02b7d0", "00112233445566778899aabbccddeeff",
                                std::string(62, 'a') + "b1", "10.0.0.1:7070,10.0.0.2:7070",
                                "[fd00::1]:8080"};

TEST(AccessToken, SaysWhatItWasMadeOf) {
  for (const char* http : {"[fd00::1]:8080", ""}) {
    AccessTokenText token = kToken;
    token.http = http;
    const std::string text = FormatAccessToken(token);
    EXPECT_THAT(text, ::testing::StartsWith("esp1.4f1c9a02b7d0."));
    EXPECT_THAT(text, Not(HasSubstr(token.secret)));
    const auto read = ParseAccessToken(" " + text + "\n");
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->id, token.id);
    EXPECT_EQ(read->secret, token.secret);
    EXPECT_EQ(read->ca_sha256, token.ca_sha256);
    EXPECT_EQ(read->coordinator, token.coordinator);
    EXPECT_EQ(read->http, http);
  }
}

// A part of one would name another CA or address, and be taken for an attack.
TEST(AccessToken, CutOffOrChangedIsNone) {
  const std::string text = FormatAccessToken(kToken);
  for (size_t length = 0; length < text.size(); ++length) {
    EXPECT_FALSE(ParseAccessToken(text.substr(0, length)).ok()) << length;
  }
  for (size_t i = 5; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = changed[i] == 'b' ? 'c' : 'b';
    const auto read = ParseAccessToken(changed);
    // The last character has bits that mean nothing.
    EXPECT_TRUE(!read.ok() || i + 1 == text.size()) << i;
    EXPECT_THAT(std::string(read.status().message()), Not(HasSubstr(text.substr(20, 20))));
  }
  EXPECT_FALSE(ParseAccessToken(std::string(1 << 20, 'a')).ok());
}

TEST(OwnAddress, ReadsAndWritesHostsAndPorts) {
  const auto v6 = ParseHostAndPort("[::1]:7070", "--listen");
  ASSERT_TRUE(v6.ok());
  EXPECT_EQ(v6->host, "::1");
  EXPECT_EQ(JoinHostAndPort(v6->host, v6->port), "[::1]:7070");
  EXPECT_EQ(ParseHostAndPort("a.example:1", "--listen")->host, "a.example");
  for (const char* wrong : {"", "a", ":1", "a:", "a:x", "a:65536", "a:-1"}) {
    EXPECT_THAT(std::string(ParseHostAndPort(wrong, "--listen").status().message()),
                HasSubstr("--listen is '"))
        << wrong;
  }
  EXPECT_EQ(UsualHost("0:0:0:0:0:0:0:1"), "::1");
  EXPECT_EQ(UsualHost("a.example"), "a.example");
}

TEST(OwnAddress, IsThatOfTheInterfaceThatReachesAnAddress) {
  EXPECT_EQ(*AddressTowards("127.0.0.1:9"), "127.0.0.1");
  EXPECT_EQ(*AddressTowards("127.0.0.77:9"), "127.0.0.1");
  EXPECT_TRUE(absl::IsUnavailable(AddressTowards("no-such-host.invalid:9").status()));
  EXPECT_EQ(ReachableAddress("10.0.0.1:7070"), "10.0.0.1:7070");
}

}  // namespace
}  // namespace espalier
