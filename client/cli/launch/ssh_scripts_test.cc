#include "client/cli/launch/ssh_scripts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "client/cli/launch/remote_shell.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

// The scripts run on this host, with a home of the test's own.
class SshScriptsTest : public ::testing::Test {
 protected:
  SshScriptsTest() {
    home_ = ::testing::TempDir() + "/home_" +
            ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(home_);
    std::filesystem::create_directories(home_);
    setenv("HOME", home_.c_str(), 1);
    process_.launch = "l1";
    process_.name = "worker-0";
    process_.program = "/bin/sh";
    process_.flags = {"-c", "cat \"$0\"; exec sleep 100", "{LAUNCH}/worker-0.secret"};
    process_.secret = "it's secret";
  }
  ~SshScriptsTest() override {
    Run(StopScript("l1", "worker-0", 5, /*ask_twice=*/false)).IgnoreError();
  }

  absl::StatusOr<std::string> Run(const std::string& script) {
    return RemoteShell("ssh", [] { return false; }).RunOne({"", "work", script, ""}, 20);
  }
  std::string Read(const std::string& name) {
    std::ifstream in(home_ + "/.espalier/launch/l1/" + name);
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
  }
  // What has ended may still be there for its parent.
  static bool Lives(int pid) {
    std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
    std::stringstream text;
    text << in.rdbuf();
    const size_t name = text.str().rfind(')');
    return name != std::string::npos && text.str().substr(name + 2, 1) != "Z";
  }
  int Pid() { return std::stoi(Read("worker-0.pid")); }

  std::string home_;
  RemoteProcess process_;
};

TEST_F(SshScriptsTest, AProcessStartsIsSeenAndStops) {
  ASSERT_TRUE(Run(StartScript(process_)).ok());
  EXPECT_TRUE(Run(CheckScript("l1", "worker-0")).ok());
  const int pid = Pid();
  EXPECT_TRUE(Lives(pid));
  // Others see command lines, but not the file.
  std::ifstream command("/proc/" + std::to_string(pid) + "/cmdline");
  std::stringstream words;
  words << command.rdbuf();
  EXPECT_THAT(words.str(), ::testing::Not(HasSubstr("it's")));
  const std::string secret = home_ + "/.espalier/launch/l1/worker-0.secret";
  EXPECT_EQ(std::filesystem::status(secret).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);

  EXPECT_EQ(ReadAnswers(*Run(StopScript("l1", "worker-0", 5, /*ask_twice=*/false)))["stopped"],
            "yes");
  EXPECT_FALSE(Lives(pid));
  EXPECT_THAT(Read("worker-0.log"), HasSubstr("it's secret"));
  EXPECT_FALSE(std::filesystem::exists(secret));
  EXPECT_EQ(ReadAnswers(*Run(StopScript("l1", "worker-0", 5, /*ask_twice=*/false)))["stopped"],
            "no");
}

TEST_F(SshScriptsTest, WhatIgnoresSigtermIsKilled) {
  process_.flags = {"-c", "trap '' TERM; while :; do sleep 0.1; done"};
  ASSERT_TRUE(Run(StartScript(process_)).ok());
  const int pid = Pid();
  EXPECT_EQ(ReadAnswers(*Run(StopScript("l1", "worker-0", 1, /*ask_twice=*/false)))["stopped"],
            "yes");
  EXPECT_FALSE(Lives(pid));
}

TEST_F(SshScriptsTest, AWorkerOfALaunchThatEndsIsAskedTwice) {
  process_.flags = {"-c",
                    "trap 'n=x$n; [ $n != xx ] || { echo asked twice; exit; }' TERM; "
                    "while :; do sleep 0.05; done"};
  ASSERT_TRUE(Run(StartScript(process_)).ok());
  const int pid = Pid();
  const absl::StatusOr<std::string> stopped =
      Run(StopScript("l1", "worker-0", 20, /*ask_twice=*/true));
  ASSERT_TRUE(stopped.ok()) << stopped.status();
  EXPECT_EQ(ReadAnswers(*stopped)["stopped"], "yes");
  EXPECT_FALSE(Lives(pid));
  EXPECT_THAT(Read("worker-0.log"), HasSubstr("asked twice"));
}

TEST_F(SshScriptsTest, AProcessThatEndsSaysWhy) {
  process_.flags = {"-c", "echo there is no such device >&2; exit 1"};
  ASSERT_TRUE(Run(StartScript(process_)).ok());
  absl::StatusOr<std::string> check = "";
  for (int i = 0; i < 100 && check.ok(); ++i) check = Run(CheckScript("l1", "worker-0"));
  EXPECT_THAT(std::string(check.status().message()), HasSubstr("there is no such device"));
}

TEST_F(SshScriptsTest, ANumberThatIsAnotherProcessNowIsNotKilled) {
  ASSERT_TRUE(Run(StartScript(process_)).ok());
  const std::string known = Read("worker-0.pid");
  // This test's own process, with the start time of the other.
  std::ofstream(home_ + "/.espalier/launch/l1/worker-0.pid")
      << getpid() << known.substr(known.find(' '));
  EXPECT_EQ(ReadAnswers(*Run(StopScript("l1", "worker-0", 5, /*ask_twice=*/false)))["stopped"],
            "no");
  kill(std::stoi(known), SIGKILL);
}

TEST_F(SshScriptsTest, TwoStartsOfOneNameAreRefused) {
  ASSERT_TRUE(Run(StartScript(process_)).ok());
  EXPECT_THAT(std::string(Run(StartScript(process_)).status().message()),
              HasSubstr("worker-0 of this launch runs already"));
}

}  // namespace
}  // namespace espalier
