// `espalier up` and `down`, with shell scripts in place of espalierd.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/cli_fixture.h"
#include "client/cli/daemon.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

class DaemonTest : public CliTest {
 protected:
  // Writes a daemon that is ready at once and runs `on_term` on SIGTERM. `more` is appended to its
  // ready file.
  void WriteDaemon(const std::string& on_term = "exit 0", const std::string& more = "") {
    const std::string path = home_ + "/espalierd";
    std::ofstream(path)
        << "#!/bin/sh\ntrap '" << on_term
        << "' TERM\n"
           "for a in \"$@\"; do case $a in --ready-file=*) f=${a#--ready-file=};; esac; done\n"
           "printf '{\"grpc\": \"127.0.0.1:5\", \"http\": \"127.0.0.1:6\""
        << more
        << "}' > \"$f.new\"\n"
           "mv \"$f.new\" \"$f\"\nwhile :; do sleep 0.05; done\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }
};

TEST_F(DaemonTest, AddressesOfTheRunningDaemonAreFound) {
  std::ofstream(ReadyFile(home_)) << R"({"grpc": ")" << fake_.address()
                                  << R"(", "http": "127.0.0.1:9"})";
  EXPECT_EQ(Run({"status"}, false), kExitOk) << err_.str();
  EXPECT_EQ(ReadAddresses(home_).http, "127.0.0.1:9");
  EXPECT_EQ(ReadAddresses("/nonexistent").grpc, "127.0.0.1:7070");
}

TEST_F(DaemonTest, UpNamesSearchedPathsAndDownReportsNothingRuns) {
  EXPECT_EQ(Run({"up"}, false), kExitNotFound);
  EXPECT_THAT(err_.str(), HasSubstr("/espalierd, "));
  EXPECT_EQ(Run({"down"}, false), kExitNotFound);
}

TEST_F(DaemonTest, UpWaitsForTheDaemonAndDownEndsIt) {
  WriteDaemon();
  ASSERT_EQ(Run({"up", "--json"}, false), kExitOk) << err_.str();
  Json json = Json::parse(out_.str());
  EXPECT_EQ(json["grpc"], "127.0.0.1:5");
  EXPECT_EQ(RunningDaemon(home_), json["pid"]);
  EXPECT_EQ(Run({"up"}, false), kExitFailed);
  EXPECT_THAT(err_.str(), HasSubstr("is already running"));
  EXPECT_EQ(Run({"down"}, false), kExitOk) << err_.str();
  EXPECT_EQ(RunningDaemon(home_), 0);

  std::ofstream(home_ + "/espalierd") << "#!/bin/sh\necho cannot listen on 7070\nexit 1\n";
  EXPECT_EQ(Run({"up"}, false), kExitFailed);
  EXPECT_THAT(err_.str(), HasSubstr("cannot listen on 7070"));
}

// After a crash, the pid may belong to a process that reads the log.
TEST_F(DaemonTest, OtherProcessWithReusedPidIsNotStopped) {
  const pid_t reader = fork();
  if (reader == 0) {
    execlp("tail", "tail", "-f", "/dev/null", "espalierd.log", nullptr);
    _exit(1);
  }
  const std::string command = absl::StrCat("/proc/", reader, "/cmdline");
  std::string words;
  for (int i = 0; i < 1000 && !absl::StrContains(words, "espalierd.log"); ++i) {
    absl::SleepFor(absl::Milliseconds(10));
    std::ifstream(command) >> words;
  }
  ASSERT_THAT(words, HasSubstr("espalierd.log"));
  std::ofstream(PidFile(home_)) << reader;
  EXPECT_EQ(RunningDaemon(home_), 0);
  EXPECT_EQ(kill(reader, SIGKILL), 0);
  waitpid(reader, nullptr, 0);
}

TEST_F(DaemonTest, DownWaitsForDrainTime) {
  WriteDaemon("sleep 0.8; exit 0");
  ASSERT_EQ(Run({"up"}, false), kExitOk) << err_.str();
  ASSERT_EQ(Run({"down"}, false), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("waiting for running requests, at most 30.0 s"));
  EXPECT_THAT(out_.str(), HasSubstr("killed after 1m 00s"));
  EXPECT_THAT(out_.str(), HasSubstr("espalierd has stopped;"));

  ASSERT_EQ(Run({"up", "--", "--drain-seconds=5", "--drain-seconds=120"}, false), kExitOk)
      << err_.str();
  ASSERT_EQ(Run({"down"}, false), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("at most 2m 00s"));
  EXPECT_THAT(out_.str(), HasSubstr("killed after 2m 30s"));

  // However the daemon got its drain time.
  WriteDaemon("sleep 0.8; exit 0", R"(, "drain_seconds": 600)");
  ASSERT_EQ(Run({"up", "--", "--flagfile=some"}, false), kExitOk) << err_.str();
  ASSERT_EQ(Run({"down"}, false), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("at most 10m 00s"));

  ASSERT_EQ(Run({"up"}, false), kExitOk) << err_.str();
  ASSERT_EQ(Run({"down", "--json"}, false), kExitOk) << err_.str();
  EXPECT_EQ(Json::parse(out_.str())["killed"], false);
}

TEST_F(DaemonTest, DaemonIsKilledAfterTimeout) {
  WriteDaemon("");
  ASSERT_EQ(Run({"up", "--", "--drain-seconds=120"}, false), kExitOk) << err_.str();
  ASSERT_EQ(Run({"down", "--timeout=0.8"}, false), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("killed after 800 ms"));
  EXPECT_THAT(out_.str(), HasSubstr("longer: espalier down --timeout=SECONDS"));
  EXPECT_EQ(RunningDaemon(home_), 0);
}

TEST_F(CliTest, LogoutRemovesWhatLoginKept) {
  EXPECT_EQ(Run({"login"}, false), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("missing: a token, as an argument or on standard input"));
  EXPECT_EQ(Run({"logout"}, false), kExitNotFound);
  EXPECT_THAT(err_.str(), HasSubstr("there is no login in " + home_));

  const std::string token = home_ + "/login/current/token", connection = home_ + "/connection.json";
  const auto log_in = [&](const std::string& token_file) {
    std::filesystem::create_directories(home_ + "/login/current");
    std::ofstream(token) << "esp1.x\n";
    std::ofstream(connection) << Json{{"grpc", "a:1"}, {"token_file", token_file}}.dump();
  };
  log_in(token);
  EXPECT_EQ(Run({"logout"}, false), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("logged out"));
  EXPECT_FALSE(std::filesystem::exists(home_ + "/login"));
  EXPECT_FALSE(std::filesystem::exists(connection));
  EXPECT_TRUE(std::filesystem::exists(home_ + "/text.txt")) << "the rest stays";
  // A coordinator that was started here since then has written its own.
  log_in(home_ + "/data/tls/admin.key");
  EXPECT_EQ(Run({"logout"}, false), kExitOk) << err_.str();
  EXPECT_FALSE(std::filesystem::exists(token));
  EXPECT_TRUE(std::filesystem::exists(connection));
}

}  // namespace
}  // namespace espalier
