#include "client/cli/launch/ssh_scripts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
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
    process_.owner = "mine";
    process_.program = "/bin/sh";
    process_.flags = {"-c", "cat \"$0\"; exec sleep 100", "{LAUNCH}/worker-0.secret"};
    process_.secret = "it's secret";
  }
  ~SshScriptsTest() override {
    setenv("PATH", path_.c_str(), 1);
    Run(StopScript(process_, 5, false)).IgnoreError();
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
  // A program that scripts find before the system's.
  void Program(const std::string& name, const std::string& script) {
    const std::string folder = home_ + "/bin";
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/" + name) << "#!/bin/sh\n" << script;
    std::filesystem::permissions(folder + "/" + name, std::filesystem::perms::owner_all);
    setenv("PATH", (folder + ":" + path_).c_str(), 1);
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

  const std::string path_ = getenv("PATH");
  std::string home_;
  RemoteProcess process_;
};

TEST_F(SshScriptsTest, AProcessStartsIsSeenAndStops) {
  ASSERT_TRUE(Run(StartScript(process_)).ok());
  EXPECT_TRUE(Run(CheckScript(process_)).ok());
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

  EXPECT_EQ(ReadAnswers(*Run(StopScript(process_, 5, false)))["stopped"], "yes");
  EXPECT_FALSE(Lives(pid));
  EXPECT_THAT(Read("worker-0.log"), HasSubstr("it's secret"));
  EXPECT_FALSE(std::filesystem::exists(secret));
  EXPECT_EQ(ReadAnswers(*Run(StopScript(process_, 5, false)))["stopped"], "no");
}

TEST_F(SshScriptsTest, WhatIgnoresSigtermIsKilled) {
  process_.flags = {"-c", "trap '' TERM; echo on; while :; do sleep 0.1; done"};
  ASSERT_TRUE(Run(StartScript(process_)).ok());
  const int pid = Pid();
  while (Read("worker-0.log").empty()) usleep(1000);
  EXPECT_EQ(ReadAnswers(*Run(StopScript(process_, 1, false)))["stopped"], "yes");
  EXPECT_FALSE(Lives(pid));
}

TEST_F(SshScriptsTest, AWorkerOfALaunchThatEndsIsAskedTwice) {
  process_.flags = {"-c",
                    "trap 'n=x$n; [ $n != xx ] || { echo asked twice; exit; }' TERM; "
                    "echo on; while :; do sleep 0.05; done"};
  ASSERT_TRUE(Run(StartScript(process_)).ok());
  const int pid = Pid();
  while (Read("worker-0.log").empty()) usleep(1000);
  const absl::StatusOr<std::string> stopped = Run(StopScript(process_, 20, /*ask_twice=*/true));
  ASSERT_TRUE(stopped.ok()) << stopped.status();
  EXPECT_EQ(ReadAnswers(*stopped)["stopped"], "yes");
  EXPECT_FALSE(Lives(pid));
  EXPECT_THAT(Read("worker-0.log"), HasSubstr("asked twice"));
}

TEST_F(SshScriptsTest, AProcessThatEndsSaysWhy) {
  process_.flags = {"-c", "echo there is no such device >&2; exit 1"};
  ASSERT_TRUE(Run(StartScript(process_)).ok());
  absl::StatusOr<std::string> check = "";
  for (int i = 0; i < 100 && check.ok(); ++i) check = Run(CheckScript(process_));
  EXPECT_THAT(std::string(check.status().message()), HasSubstr("there is no such device"));
}

TEST_F(SshScriptsTest, ANumberThatIsAnotherProcessNowIsNotKilled) {
  ASSERT_TRUE(Run(StartScript(process_)).ok());
  const std::string known = Read("worker-0.pid");
  // This test's own process, with the start time of the other.
  std::ofstream(home_ + "/.espalier/launch/l1/worker-0.pid")
      << getpid() << known.substr(known.find(' '));
  EXPECT_EQ(ReadAnswers(*Run(StopScript(process_, 5, false)))["stopped"], "no");
  kill(std::stoi(known), SIGKILL);
}

// Two machines with a hosts file at the same path, and one account on the hosts.
TEST_F(SshScriptsTest, ALaunchDoesNotStopWhatAnotherOneHasStarted) {
  ASSERT_TRUE(Run(StartScript(process_)).ok());
  const int pid = Pid();
  ProcessName other = process_;
  other.owner = "other";
  EXPECT_EQ(ReadAnswers(*Run(StopScript(other, 5, false)))["stopped"], "other");
  EXPECT_TRUE(Lives(pid));
  EXPECT_TRUE(Run(CheckScript(process_)).ok());
  EXPECT_EQ(ReadAnswers(*Run(StopScript(process_, 5, false)))["stopped"], "yes");
  EXPECT_FALSE(Lives(pid));
}

// The connection of a start was cut, and its script goes on.
TEST_F(SshScriptsTest, AStartThatComesAfterItsStopStartsNothing) {
  EXPECT_EQ(ReadAnswers(*Run(StopScript(process_, 5, false)))["stopped"], "no");
  EXPECT_THAT(std::string(Run(StartScript(process_)).status().message()),
              HasSubstr("it was stopped before it could start"));
  EXPECT_EQ(Read("worker-0.pid"), "");
  process_.owner = "next";
  EXPECT_TRUE(Run(StartScript(process_)).ok());
  EXPECT_TRUE(Run(CheckScript(process_)).ok());
}

TEST_F(SshScriptsTest, AStopWaitsForAStart) {
  // Starts slowly.
  Program("cat", "[ $# != 0 ] || sleep 0.2\nexec /bin/cat \"$@\"\n");
  std::thread start([&] { EXPECT_TRUE(Run(StartScript(process_)).ok()); });
  while (!std::filesystem::exists(home_ + "/.espalier/launch/l1/worker-0.owner")) usleep(1000);
  EXPECT_EQ(ReadAnswers(*Run(StopScript(process_, 5, false)))["stopped"], "yes");
  start.join();
  EXPECT_FALSE(Run(CheckScript(process_)).ok());
}

// A process of which nobody would know does not go on.
TEST_F(SshScriptsTest, OnAFullDiskNothingStarts) {
  process_.flags = {"-c", "echo $$ > \"$HOME/started\"; exec sleep 100"};
  for (const char* const what : {"[0-9]*", "mine", "it*"}) {
    Program("cat",
            absl::StrCat("[ $# = 0 ] || exec /bin/cat \"$@\"\nread first\ncase $first in\n", what,
                         ") sleep 0.3; echo 'cat: write error: No space left on device' "
                         ">&2; exit 1 ;;\nesac\nprintf %s \"$first\"\n"));
    const absl::Status started = Run(StartScript(process_)).status();
    EXPECT_THAT(std::string(started.message()), HasSubstr("remedy: its disk is full")) << what;
    std::ifstream pid(home_ + "/started");
    int number = 0;
    if (pid >> number) {
      for (int i = 0; i < 500 && Lives(number); ++i) usleep(10'000);
      EXPECT_FALSE(Lives(number)) << what;
    }
    std::filesystem::remove(home_ + "/started");
  }
}

TEST_F(SshScriptsTest, AHomeWithoutLocksIsNamed) {
  Program("flock", "echo 'flock: 9: No locks available' >&2; exit 71\n");
  const std::string said(Run(StartScript(process_)).status().message());
  EXPECT_THAT(said, HasSubstr("No locks available"));
  EXPECT_THAT(said, ::testing::Not(HasSubstr("another start")));
}

// With stand-ins for systemd's programs.
TEST_F(SshScriptsTest, AUnitStartsIsSeenAndStops) {
  Program("systemd-run", "printf '%s\\n' \"$@\" > \"$HOME/argv\"; touch \"$HOME/active\"\n");
  Program("systemctl",
          "[ \"$1\" = --user ] || exit 2\n"
          "for unit; do true; done\n"
          "[ \"$unit\" = espalier-l1-worker-0.service ] || exit 2\n"
          "case \" $* \" in\n"
          "*' is-active '*) [ -e \"$HOME/active\" ] ;;\n"
          "*' stop '*) rm \"$HOME/active\" ;;\n"
          "esac\n");
  process_.systemd = true;
  process_.flags = {"--name=a b", "--join-file={LAUNCH}/worker-0.secret"};
  ASSERT_TRUE(Run(StartScript(process_)).ok());
  std::ifstream file(home_ + "/argv");
  std::stringstream argv;
  argv << file.rdbuf();
  const std::string launch = home_ + "/.espalier/launch/l1/";
  for (const std::string& word :
       {std::string("--user"), std::string("--unit=espalier-l1-worker-0.service"),
        "--property=StandardError=append:" + launch + "worker-0.log", std::string("--name=a b"),
        "--join-file=" + launch + "worker-0.secret"}) {
    EXPECT_THAT("\n" + argv.str(), HasSubstr("\n" + word + "\n"));
  }
  EXPECT_TRUE(Run(CheckScript(process_)).ok());
  EXPECT_THAT(std::string(Run(StartScript(process_)).status().message()),
              HasSubstr("worker-0 of this launch runs already"));
  EXPECT_EQ(ReadAnswers(*Run(StopScript(process_, 5, true)))["stopped"], "yes");
  EXPECT_FALSE(Run(CheckScript(process_)).ok());
  EXPECT_EQ(ReadAnswers(*Run(StopScript(process_, 5, true)))["stopped"], "no");
}

TEST_F(SshScriptsTest, TwoStartsOfOneNameAreRefused) {
  ASSERT_TRUE(Run(StartScript(process_)).ok());
  EXPECT_THAT(std::string(Run(StartScript(process_)).status().message()),
              HasSubstr("worker-0 of this launch runs already"));
  EXPECT_TRUE(Run(CheckScript(process_)).ok());
}

}  // namespace
}  // namespace espalier
