#include "base/net/listen_error.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

namespace espalier {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ListenErrorTest, ThePortIsInUse) {
  const int other = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(other, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(other, 1), 0);
  ASSERT_EQ(getsockname(other, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  const absl::Status status = CannotListen("127.0.0.1:" + port);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "cannot listen on 127.0.0.1:" + port +
                                  ": the port is in use; `ss -ltnp sport = :" + port +
                                  "` shows by which program");
  close(other);
  EXPECT_THAT(std::string(CannotListen("127.0.0.1:" + port).message()),
              HasSubstr("the port is free now"));
}

// RFC 5737: 192.0.2.0/24 belongs to nobody.
TEST(ListenErrorTest, TheHostHasNoSuchAddress) {
  EXPECT_THAT(std::string(CannotListen("192.0.2.99:0").message()),
              StartsWith("cannot listen on 192.0.2.99:0: this host has no such address; "));
}

TEST(ListenErrorTest, WhatIsNoAddressIsSaid) {
  EXPECT_THAT(std::string(CannotListen("no-such-host.invalid:7070").message()),
              HasSubstr("does not know the name no-such-host.invalid ("));
  EXPECT_THAT(std::string(CannotListen("7070").message()), HasSubstr("host:port"));
}

}  // namespace
}  // namespace espalier
