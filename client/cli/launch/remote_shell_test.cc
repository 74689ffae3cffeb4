#include "client/cli/launch/remote_shell.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace espalier {
namespace {

using ::testing::HasSubstr;

const auto kNever = [] { return false; };

// Its ssh runs the command here by a shell, as sshd does. The host "closed" refuses.
RemoteShell Shell() {
  const std::string path = ::testing::TempDir() + "/ssh";
  FILE* const file = fopen(path.c_str(), "w");
  fputs(R"(#!/bin/sh
for word; do
  case $word in
    closed) echo 'ssh: connect to host closed port 22: Connection refused' >&2; exit 255 ;;
  esac
done
while [ "$1" != sh ]; do shift; done
exec sh -c "$*"
)",
        file);
  fclose(file);
  chmod(path.c_str(), 0700);
  return RemoteShell(path, kNever);
}

TEST(RemoteShellTest, ScriptsRunAndAnswer) {
  const auto answers =
      Shell().RunOne({"host", "answer", "echo \"a='b c'\"; echo name=value; echo noise", ""}, 10);
  ASSERT_TRUE(answers.ok()) << answers.status();
  EXPECT_EQ(ReadAnswers(*answers), (Answers{{"a", "'b c'"}, {"name", "value"}}));
}

TEST(RemoteShellTest, AScriptReadsItsInput) {
  const std::string path = ::testing::TempDir() + "/input";
  FILE* const file = fopen(path.c_str(), "w");
  fputs("data", file);
  fclose(file);
  const auto answer = Shell().RunOne({"host", "read", "echo \"read=$(cat)\"", path}, 10);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(*answer, "read=data\n");
}

TEST(RemoteShellTest, ErrorsSayWhereWhatWhyAndTheRemedy) {
  const auto results = Shell().Run(
      {{"good", "work", "echo done=yes", ""},
       {"closed", "work", "echo done=yes", ""},
       {"behind", "run worker behind",
        "echo 'the coordinator cannot reach this worker at 10.0.0.2:4242: timed out' >&2; exit 1",
        ""},
       {"old", "start the worker",
        "echo \"espalier-worker: /lib/libc.so.6: version 'GLIBC_2.36' not found\" >&2; exit 1",
        ""}},
      10);
  EXPECT_TRUE(results[0].ok());
  const std::string closed(results[1].status().message());
  EXPECT_THAT(closed, HasSubstr("closed: `"));
  EXPECT_THAT(closed, HasSubstr("Connection refused"));
  EXPECT_THAT(closed, HasSubstr("remedy: no sshd listens there"));
  EXPECT_THAT(std::string(results[2].status().message()),
              HasSubstr("remedy: the coordinator calls its workers back"));
  const std::string old(results[3].status().message());
  EXPECT_THAT(old, HasSubstr("old: cannot start the worker (exit code 1)"));
  EXPECT_THAT(old, HasSubstr("remedy: its C library is older"));
}

TEST(RemoteShellTest, AHostThatDoesNotAnswerIsNotWaitedFor) {
  const auto result = Shell().RunOne({"slow", "work", "sleep 100", ""}, 0.2);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("slow: cannot work within 0.2 s"));
  EXPECT_THAT(std::string(Shell().RunOne({"", "work", "sleep 100", ""}, 0.2).status().message()),
              HasSubstr("this host: cannot work within 0.2 s"));
}

// As sshd does with too many connections: from the eleventh on it drops some.
TEST(RemoteShellTest, ConnectionsAreFewAndDroppedOnesAreMadeAnew) {
  const std::string folder = ::testing::TempDir() + "/connections";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder + "/now");
  const std::string ssh = folder + "/ssh";
  std::ofstream(ssh) << "#!/bin/sh\ncd " << folder << R"(
if mkdir dropped 2> /dev/null; then
  echo 'kex_exchange_identification: Connection closed by remote host' >&2
  exit 255
fi
mkdir now/$$
ls now | wc -l >> counts
sleep 0.1
rmdir now/$$
echo done=yes
)";
  chmod(ssh.c_str(), 0700);
  const auto results =
      RemoteShell(ssh, kNever).Run(std::vector<RemoteCall>(30, {"host", "work", "true", ""}), 10);
  for (const auto& result : results) EXPECT_TRUE(result.ok()) << result.status();
  std::ifstream counts(folder + "/counts");
  int made = 0, most = 0;
  for (int count = 0; counts >> count; ++made) most = std::max(most, count);
  EXPECT_EQ(made, 30);
  EXPECT_LE(most, 8);
}

TEST(RemoteShellTest, AHostThatDropsEveryConnectionIsNamedWithTheRemedy) {
  const absl::Status failed =
      ExplainFailure({"host", "work", "true", ""}, "ssh", 255,
                     "kex_exchange_identification: read: Connection reset by peer\n");
  EXPECT_THAT(std::string(failed.message()), HasSubstr("host: `ssh host` failed"));
  EXPECT_THAT(std::string(failed.message()), HasSubstr("(MaxStartups)"));
}

TEST(RemoteShellTest, OnlyAClientThatIsMissingIsMissing) {
  const RemoteShell missing("/no/such/ssh -v", kNever);
  EXPECT_THAT(std::string(missing.RunOne({"host", "work", "true", ""}, 10).status().message()),
              HasSubstr("/no/such/ssh -v is not there"));
  EXPECT_THAT(std::string(Shell().RunOne({"host", "work", "exit 127", ""}, 10).status().message()),
              HasSubstr("host: cannot work (exit code 127)"));
}

}  // namespace
}  // namespace espalier
