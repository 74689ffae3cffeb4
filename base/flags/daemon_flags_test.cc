#include "base/flags/daemon_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/flags/flag.h"

ABSL_FLAG(std::string, data_dir, "here", "folder for jobs");
ABSL_FLAG(int, local_workers, 0, "worker processes");
ABSL_FLAG(bool, open_probes, false, "answer probes without a key");

namespace espalier {
namespace {

using ::testing::ExitedWithCode;

void Parse(std::vector<std::string> words) {
  words.insert(words.begin(), "daemon");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  ParseDaemonFlags(static_cast<int>(argv.size()), argv.data(),
                   {.program = "daemon",
                    .summary = "a daemon",
                    .example = "daemon --data-dir=x",
                    .flags_file = "daemon_flags_test.cc"});
}

TEST(DaemonFlags, ParseEqualSignBlankAndBareBools) {
  Parse({"--data-dir=/a=b", "--local-workers", "3", "--open-probes"});
  EXPECT_EQ(absl::GetFlag(FLAGS_data_dir), "/a=b");
  EXPECT_EQ(absl::GetFlag(FLAGS_local_workers), 3);
  EXPECT_TRUE(absl::GetFlag(FLAGS_open_probes));
  Parse({"--open-probes=false", "--data-dir="});
  EXPECT_FALSE(absl::GetFlag(FLAGS_open_probes));
  EXPECT_EQ(absl::GetFlag(FLAGS_data_dir), "");
}

TEST(DaemonFlagsDeathTest, RefusesUnknownArgumentsWithARemedy) {
  EXPECT_EXIT(Parse({"--data_dir=x"}), ExitedWithCode(2), "--data_dir is written --data-dir");
  EXPECT_EXIT(Parse({"--data-dri=x"}), ExitedWithCode(2),
              "unknown flag --data-dri; daemon --help shows the flags");
  EXPECT_EXIT(Parse({"--local-workers=many"}), ExitedWithCode(2), "--local-workers=many: ");
  EXPECT_EXIT(Parse({"--local-workers"}), ExitedWithCode(2), "--local-workers needs a value");
  EXPECT_EXIT(Parse({"serve"}), ExitedWithCode(2), "'serve' is not understood");
}

// Abseil's own flags are linked in, too.
TEST(DaemonFlagsDeathTest, RefusesFlagsOfLibraries) {
  EXPECT_EXIT(Parse({"--flagfile=x"}), ExitedWithCode(2), "unknown flag --flagfile");
}

TEST(DaemonFlagsDeathTest, HelpIsPrintedAndEndsTheProcess) {
  EXPECT_EXIT(Parse({"--help"}), ExitedWithCode(0), "");
  EXPECT_EXIT(Parse({"--help", "--json"}), ExitedWithCode(0), "");
  EXPECT_EXIT(Parse({"--data-dir=x", "--version"}), ExitedWithCode(0), "");
  EXPECT_EXIT(Parse({"--data-dri=x", "--version"}), ExitedWithCode(2), "unknown flag");
}

}  // namespace
}  // namespace espalier
