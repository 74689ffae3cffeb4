#include "client/cli/launch/host_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(HostFileTest, HostsSlotsAndDevices) {
  const auto hosts = ParseHostFile(
      "# two machines\n"
      "me@gpu1 slots=2\n"
      "\n"
      "gpu2 devices=cuda:1,cuda:3  # the others are somebody else's\r\n"
      "cpu1\n");
  ASSERT_TRUE(hosts.ok()) << hosts.status();
  ASSERT_EQ(hosts->size(), 3);
  EXPECT_EQ((*hosts)[0].address, "me@gpu1");
  EXPECT_EQ(NameOf((*hosts)[0]), "gpu1");
  EXPECT_EQ((*hosts)[1].line, 4);
  EXPECT_THAT(*DevicesOf((*hosts)[0], 4), ElementsAre("cuda:0", "cuda:1"));
  EXPECT_THAT(*DevicesOf((*hosts)[0], 0), ElementsAre("cpu", "cpu"));
  EXPECT_THAT(*DevicesOf((*hosts)[1], 4), ElementsAre("cuda:1", "cuda:3"));
  EXPECT_THAT(*DevicesOf((*hosts)[2], 2), ElementsAre("cuda:0", "cuda:1"));
  EXPECT_THAT(*DevicesOf((*hosts)[2], 0), ElementsAre("cpu"));
}

TEST(HostFileTest, ErrorsNameTheLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"a\nb slots=0\n", "line 2: slots=0"},
      {"a slots=2 devices=cpu\n", "line 1: 2 slots and 1 devices"},
      {"a devices=gpu0\n", "line 1: \"gpu0\" is no device"},
      {"a max-slots=2\n", "line 1: \"max-slots=2\" is not understood"},
      {"me@a\nyou@a\n", "line 2: a stands here twice"},
      {"-oProxyCommand=reboot\n", "is no host"},
      {"a;reboot\n", "is no host"},
      {"# nothing\n", "no host in it"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_THAT(std::string(ParseHostFile(text).status().message()), HasSubstr(message)) << text;
  }
}

TEST(HostFileTest, TooFewGpus) {
  const auto hosts = ParseHostFile("a\nb slots=2\n");
  ASSERT_TRUE(hosts.ok());
  EXPECT_THAT(std::string(DevicesOf((*hosts)[1], 1).status().message()),
              HasSubstr("b has 1 GPUs, and line 2 of the hosts file asks for cuda:1"));
}

}  // namespace
}  // namespace espalier
