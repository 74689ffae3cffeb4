#include "server/jobs/checkpoint_folders.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

namespace espalier {
namespace {

class CheckpointFoldersTest : public ::testing::Test {
 protected:
  CheckpointFoldersTest()
      : folder_(::testing::TempDir() + "/checkpoint-folders-" +
                ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove_all(folder_);
    for (const char* file : {"attempt-1/step-10/manifest.json", "attempt-1/step-10/rank-0",
                             "attempt-1/step-20/rank-0.tmp", "attempt-2/step-10/manifest.json"}) {
      std::filesystem::create_directories(std::filesystem::path(folder_ / file).parent_path());
      std::ofstream(folder_ / file) << "x";
    }
  }

  std::set<std::string> Files() const {
    std::set<std::string> files;
    if (!std::filesystem::exists(folder_)) return files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
      if (entry.is_regular_file()) files.insert(entry.path().lexically_relative(folder_).string());
    }
    return files;
  }

  const std::filesystem::path folder_;
};

TEST_F(CheckpointFoldersTest, RemovesAllButKeptCheckpointForAnySpelling) {
  const std::string other_spelling =
      (folder_.parent_path() / "." / folder_.filename() / "attempt-1" / "..").string() + "/";
  RemoveCheckpoints(other_spelling, CheckpointWithinJob("/moved/job-1/attempt-1/step-10"));
  EXPECT_EQ(Files(),
            (std::set<std::string>{"attempt-1/step-10/manifest.json", "attempt-1/step-10/rank-0"}));
}

TEST_F(CheckpointFoldersTest, KeepsEverythingIfKeptCheckpointIsIncomplete) {
  RemoveCheckpoints(folder_.string(), "attempt-1/step-20");
  RemoveCheckpoints(folder_.string(), "attempt-3/step-30");
  EXPECT_EQ(Files().size(), 4u);
}

TEST_F(CheckpointFoldersTest, TheFolderGoesWhereNothingIsKept) {
  RemoveCheckpoints(folder_.string(), CheckpointWithinJob(""));
  EXPECT_FALSE(std::filesystem::exists(folder_));
  RemoveCheckpoints(folder_.string(), "");  // again
}

TEST_F(CheckpointFoldersTest, CheckpointWithinJobAcceptsFullAndRelativePaths) {
  EXPECT_EQ(CheckpointWithinJob("/data/checkpoints/job-1/attempt-2/step-10-attempt-2"),
            "attempt-2/step-10-attempt-2");
  EXPECT_EQ(CheckpointWithinJob("attempt-2/step-10-attempt-2"), "attempt-2/step-10-attempt-2");
  EXPECT_EQ(CheckpointWithinJob("/data/checkpoints/job-1/../../.."), "");
}

}  // namespace
}  // namespace espalier
