#include "client/cli/launch/launch_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

namespace espalier {
namespace {

using ::testing::HasSubstr;

namespace fs = std::filesystem;

class LaunchRecordTest : public ::testing::Test {
 protected:
  LaunchRecordTest() {
    fs::remove_all(home_);
    record_.id = "l1";
    record_.owner = "mine";
    record_.hosts_file = "/hosts";
    record_.ssh = "ssh -F x";
    record_.processes = {{"", "coordinator", "", ""}, {"me@a", "worker-0", "a", "cpu"}};
  }

  const std::string home_ = ::testing::TempDir() + "/launch_record";
  LaunchRecord record_;
};

TEST_F(LaunchRecordTest, IsReadAsItWasWritten) {
  EXPECT_TRUE(absl::IsNotFound(ReadLaunchRecord(home_, "l1").status()));
  ASSERT_TRUE(ClaimLaunch(home_, record_).ok());
  record_.coordinator = "[fd00::1]:7";
  ASSERT_TRUE(WriteLaunchRecord(home_, record_).ok());
  const auto read = ReadLaunchRecord(home_, "l1");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->owner, "mine");
  EXPECT_EQ(read->coordinator, "[fd00::1]:7");
  ASSERT_EQ(read->processes.size(), 2u);
  EXPECT_EQ(read->processes[1].host, "me@a");
  EXPECT_EQ(fs::status(LaunchHome(home_, "l1") + "/record.json").permissions(),
            fs::perms::owner_read | fs::perms::owner_write);
  RemoveLaunchRecord(home_, "l1");
  EXPECT_TRUE(absl::IsNotFound(ReadLaunchRecord(home_, "l1").status()));
}

// `export ESPALIER_HOME=` of what a launch says must not hide it from --stop.
TEST_F(LaunchRecordTest, ALaunchsOwnHomeIsNotTheHomeOfLaunches) {
  EXPECT_EQ(HomeOfLaunches(home_), home_);
  EXPECT_EQ(HomeOfLaunches(LaunchHome(home_, "l1")), LaunchHome(home_, "l1")) << "no launch";
  ASSERT_TRUE(ClaimLaunch(home_, record_).ok());
  EXPECT_EQ(HomeOfLaunches(LaunchHome(home_, "l1")), home_);
  EXPECT_EQ(HomeOfLaunches(LaunchHome(home_, "l1") + "/"), home_);
  EXPECT_EQ(HomeOfLaunches(home_), home_);
}

TEST_F(LaunchRecordTest, OnlyOneLaunchBeginsAtATime) {
  ASSERT_TRUE(ClaimLaunch(home_, record_).ok());
  LaunchRecord other = record_;
  other.owner = "other";
  EXPECT_TRUE(absl::IsAlreadyExists(ClaimLaunch(home_, other)));
  EXPECT_EQ(ReadLaunchRecord(home_, "l1")->owner, "mine");
  // Nothing else is left.
  const fs::directory_iterator files(LaunchHome(home_, "l1"));
  EXPECT_EQ(std::distance(fs::begin(files), fs::end(files)), 1);
}

TEST_F(LaunchRecordTest, ADamagedRecordIsNone) {
  ASSERT_TRUE(ClaimLaunch(home_, record_).ok());
  std::ofstream(LaunchHome(home_, "l1") + "/record.json", std::ios::trunc);
  const absl::Status read = ReadLaunchRecord(home_, "l1").status();
  EXPECT_TRUE(absl::IsDataLoss(read)) << read;
  EXPECT_THAT(std::string(read.message()), HasSubstr("by hand"));
  EXPECT_TRUE(absl::IsAlreadyExists(ClaimLaunch(home_, record_)));
}

TEST_F(LaunchRecordTest, ErrorsOfWritingSayWhy) {
  ASSERT_TRUE(ClaimLaunch(home_, record_).ok());
  // As a full disk, but for the reason.
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit none = {0, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &none);
  signal(SIGXFSZ, SIG_IGN);
  record_.coordinator = "a:1";
  const absl::Status written = WriteLaunchRecord(home_, record_);
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_THAT(std::string(written.message()), HasSubstr("File too large"));
  EXPECT_EQ(ReadLaunchRecord(home_, "l1")->coordinator, "");
  // Where there is a file, no folder can be made.
  fs::remove_all(home_);
  std::ofstream(home_) << "x";
  EXPECT_THAT(std::string(ClaimLaunch(home_, record_).message()), HasSubstr("Not a directory"));
  fs::remove(home_);
}

}  // namespace
}  // namespace espalier
