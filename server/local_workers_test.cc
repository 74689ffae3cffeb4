// In these tests, local workers are scripts that record their arguments.
#include "server/local_workers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/machine_memory.h"

namespace espalier {
namespace {

using Words = std::map<std::string, std::string>;

class LocalWorkersTest : public ::testing::Test {
 protected:
  LocalWorkersTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ + "/worker") << "#!/bin/sh\n"
                                       << "echo \"$@\" > " << folder_ << "/$$.new\n"
                                       << "ls -l /proc/self/fd > " << folder_ << "/$$.files\n"
                                       << "mv " << folder_ << "/$$.new " << folder_ << "/$$.words\n"
                                       << "exec sleep 600\n";
    std::filesystem::permissions(folder_ + "/worker", std::filesystem::perms::owner_all);
  }

  // Returns the flags of each worker.
  std::vector<Words> Started(LocalWorkersOptions options) {
    options.program = folder_ + "/worker";
    options.coordinator = "127.0.0.1:7070";
    const auto workers = LocalWorkers::Start(options);
    EXPECT_TRUE(workers.ok()) << workers.status();
    std::vector<Words> all;
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (all.size() < static_cast<size_t>(options.count) && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(20));
      all.clear();
      for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
        if (entry.path().extension() != ".words") continue;
        std::string line;
        std::ifstream file(entry.path());
        std::getline(file, line);
        all.emplace_back();
        for (const absl::string_view word : absl::StrSplit(line, ' ')) {
          all.back().insert(
              std::pair<std::string, std::string>(absl::StrSplit(word, absl::MaxSplits('=', 1))));
        }
      }
    }
    return all;
  }

  const std::string folder_ =
      absl::StrCat(::testing::TempDir(), "/local_workers_",
                   ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(LocalWorkersTest, TheMachineIsDividedAmongThem) {
  const std::vector<Words> all = Started({.count = 3});
  ASSERT_EQ(all.size(), 3u);
  for (const Words& words : all) {
    ASSERT_TRUE(words.count("--memory-limit"));
    EXPECT_EQ(words.at("--memory-limit"), absl::StrCat(DefaultMemoryLimit() / 3));
    int threads = 0;
    EXPECT_TRUE(absl::SimpleAtoi(words.at("--threads"), &threads) && threads >= 1);
  }
}

TEST_F(LocalWorkersTest, WhatIsGivenIsGivenToEach) {
  const std::vector<Words> all = Started({.count = 2,
                                          .threads = 5,
                                          .memory_limit = 1 << 20,
                                          .dataset_roots = {"/one", "/two"},
                                          .cache_dir = "/cache"});
  ASSERT_EQ(all.size(), 2u);
  for (const Words& words : all) {
    EXPECT_EQ(words.at("--memory-limit"), "1048576");
    EXPECT_EQ(words.at("--threads"), "5");
    EXPECT_EQ(words.at("--coordinator"), "127.0.0.1:7070");
    EXPECT_EQ(words.at("--dataset-root"), "/one,/two");
    EXPECT_EQ(words.at("--cache-dir"), "/cache");
  }
}

// A worker that outlives the daemon would hold its ports.
TEST_F(LocalWorkersTest, TheyInheritNoSockets) {
  const int listening = socket(AF_INET, SOCK_STREAM, 0);  // without SOCK_CLOEXEC
  ASSERT_GE(listening, 0);
  ASSERT_EQ(listen(listening, 1), 0);
  ASSERT_EQ(Started({.count = 1}).size(), 1u);
  close(listening);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    if (entry.path().extension() != ".files") continue;
    ++files;
    std::stringstream open;
    open << std::ifstream(entry.path()).rdbuf();
    EXPECT_THAT(open.str(), ::testing::HasSubstr(" 2 -> ")) << "standard error is inherited";
    EXPECT_THAT(open.str(), ::testing::Not(::testing::HasSubstr("socket:")));
  }
  EXPECT_EQ(files, 1);
}

}  // namespace
}  // namespace espalier
