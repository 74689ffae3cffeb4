#include "server/jobs/checkpoint_folders.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "base/sha256.h"
#include "storage/folder_checkpoint_store.h"
#include "storage/manifest.h"

namespace espalier {
namespace {

class CheckpointFoldersTest : public ::testing::Test {
 protected:
  CheckpointFoldersTest()
      : job_(std::string("checkpoint-folders-") +
             ::testing::UnitTest::GetInstance()->current_test_info()->name()),
        folder_(std::filesystem::path(::testing::TempDir()) / job_) {
    std::filesystem::remove_all(folder_);
    Add("attempt-1/step-10", 10);
    Add("attempt-1/step-20", 20);
    Add("attempt-2/step-20", 20);
    Add("attempt-2/step-30", 30);
    std::filesystem::create_directories(folder_ / "attempt-2/step-40");
    std::ofstream(folder_ / "attempt-2/step-40/rank-0.safetensors.tmp") << "x";
  }

  // A checkpoint of one file.
  void Add(const std::string& within_job, int64_t steps_done) {
    std::filesystem::create_directories(folder_ / within_job);
    std::ofstream(folder_ / within_job / "rank-0") << "x";
    Manifest manifest;
    manifest.steps_done = steps_done;
    manifest.files = {{"rank-0", "", 1}};
    ASSERT_EQ(WriteManifest(store_, JoinPath(job_, within_job), manifest), absl::OkStatus());
  }

  // Makes an attempt's checkpoints share a file.
  void Share(int attempt, const std::vector<std::string>& checkpoints,
             const std::string& content = "unchanged") {
    const std::string folder = absl::StrCat("attempt-", attempt);
    std::ofstream(folder_ / folder / "unchanged-rank-0") << "unchanged";
    for (const std::string& name : checkpoints) {
      const std::string checkpoint = JoinPath(JoinPath(job_, folder), name);
      Manifest manifest = *ReadManifest(store_, checkpoint);
      manifest.files.push_back({"unchanged-rank-0", Sha256Hex(content),
                                static_cast<int64_t>(content.size()), /*shared=*/true});
      ASSERT_EQ(store_.Delete(JoinPath(checkpoint, kManifestFile)), absl::OkStatus());
      ASSERT_EQ(WriteManifest(store_, checkpoint, manifest), absl::OkStatus());
    }
  }
  void ShareInBoth() {
    Share(1, {"step-10", "step-20"});
    Share(2, {"step-20", "step-30"});
  }

  // Folders with files.
  std::set<std::string> Folders() const {
    std::set<std::string> folders;
    if (!std::filesystem::exists(folder_)) return folders;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
      if (!entry.is_regular_file()) continue;
      folders.insert(entry.path().parent_path().lexically_relative(folder_).string());
    }
    return folders;
  }

  const std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  FolderCheckpointStore store_{*files_, ::testing::TempDir()};
  const std::string job_;
  const std::filesystem::path folder_;  // of the job
};

TEST_F(CheckpointFoldersTest, KeepsTwoCheckpointsForAnySpelling) {
  RemoveCheckpoints(store_, job_, 2, CheckpointWithinJob("/moved/job-1/attempt-2/step-20"));
  EXPECT_EQ(Folders(), (std::set<std::string>{"attempt-1/step-10", "attempt-2/step-20"}));
}

TEST_F(CheckpointFoldersTest, KeepsEverythingIfKeptCheckpointIsIncomplete) {
  RemoveCheckpoints(store_, job_, 2, "attempt-2/step-40");
  RemoveCheckpoints(store_, job_, 2, "attempt-3/step-30");
  EXPECT_EQ(Folders().size(), 5u);
}

TEST_F(CheckpointFoldersTest, TheFolderGoesWhereNothingIsKept) {
  RemoveCheckpoints(store_, job_, 2, CheckpointWithinJob(""));
  EXPECT_FALSE(std::filesystem::exists(folder_));
  RemoveCheckpoints(store_, job_, 2, "");  // again
}

// Its coordinator was stopped while it removed, and another one leads by now.
TEST_F(CheckpointFoldersTest, WhatALaterAttemptWritesStays) {
  Add("attempt-3/step-40", 40);
  RemoveCheckpoints(store_, job_, 2, "attempt-2/step-30");
  EXPECT_EQ(Folders(),
            (std::set<std::string>{"attempt-1/step-20", "attempt-2/step-30", "attempt-3/step-40"}));
  RemoveCheckpoints(store_, job_, 2, "");
  EXPECT_EQ(Folders(), (std::set<std::string>{"attempt-3/step-40"}));
  RemoveCheckpoints(store_, job_, 3, "");
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

TEST_F(CheckpointFoldersTest, ARunningAttemptKeepsWhatItMayBeWriting) {
  RemoveOlderCheckpoints(store_, job_, {"attempt-2/step-30", 30}, "attempt-2/step-20");
  EXPECT_EQ(Folders(),
            (std::set<std::string>{"attempt-2/step-20", "attempt-2/step-30", "attempt-2/step-40"}));
}

TEST_F(CheckpointFoldersTest, TheBestValidationsCheckpointStays) {
  RemoveOlderCheckpoints(store_, job_, {"attempt-2/step-30", 30}, "attempt-2/step-20", 10);
  EXPECT_EQ(Folders(), (std::set<std::string>{"attempt-1/step-10", "attempt-2/step-20",
                                              "attempt-2/step-30", "attempt-2/step-40"}));
  RemoveCheckpoints(store_, job_, 2, "attempt-2/step-30", 10);
  EXPECT_EQ(Folders(),
            (std::set<std::string>{"attempt-1/step-10", "attempt-2/step-20", "attempt-2/step-30"}));
  RemoveCheckpoints(store_, job_, 2, "attempt-2/step-30", 30);
  EXPECT_EQ(Folders(), (std::set<std::string>{"attempt-2/step-20", "attempt-2/step-30"}));
}

TEST_F(CheckpointFoldersTest, ACheckpointIsFoundByItsSteps) {
  EXPECT_EQ(FindCheckpoint(store_, job_, 30)->within_job, "attempt-2/step-30");
  EXPECT_EQ(FindCheckpoint(store_, job_, 40)->within_job, "") << "it has no manifest";
  EXPECT_EQ(FindCheckpointBefore(store_, job_, 20)->within_job, "attempt-1/step-10");
  EXPECT_EQ(FindCheckpointBefore(store_, job_, 10)->within_job, "");
  std::ofstream(folder_ / "attempt-1/step-10/rank-0") << "too long";
  EXPECT_EQ(FindCheckpoint(store_, job_, 10)->within_job, "");
  EXPECT_EQ(FindCheckpointBefore(store_, job_, 20)->within_job, "");
}

TEST_F(CheckpointFoldersTest, ADamagedCheckpointIsReplacedByTheNearestSoundOneBefore) {
  std::ofstream(folder_ / "attempt-1/step-20/rank-0") << "too long";
  StoredCheckpoint other = *ReplaceCheckpoint(store_, job_, {"attempt-2/step-30", 30});
  EXPECT_EQ(other.within_job, "attempt-2/step-20");
  EXPECT_EQ(other.steps_done, 20);
  other = *ReplaceCheckpoint(store_, job_, other);
  EXPECT_EQ(other.within_job, "attempt-1/step-10");
  EXPECT_TRUE(ReplaceCheckpoint(store_, job_, other)->within_job.empty());
}

// The record of a restored backup names a checkpoint that is long gone.
TEST_F(CheckpointFoldersTest, WithoutOneBeforeTheOldestLaterOneIsUsed) {
  const StoredCheckpoint other = *ReplaceCheckpoint(store_, job_, {"attempt-1/step-5", 5});
  EXPECT_EQ(other.within_job, "attempt-1/step-10");
  EXPECT_EQ(other.steps_done, 10);
}

// "attempt-1" and "attempt-2" stand for the files that their checkpoints share.
TEST_F(CheckpointFoldersTest, SharedFilesStayAsLongAsACheckpointOfTheirAttempt) {
  ShareInBoth();
  RemoveOlderCheckpoints(store_, job_, {"attempt-2/step-30", 30}, "attempt-2/step-20", 10);
  EXPECT_EQ(Folders(),
            (std::set<std::string>{"attempt-1", "attempt-1/step-10", "attempt-2",
                                   "attempt-2/step-20", "attempt-2/step-30", "attempt-2/step-40"}));
  RemoveCheckpoints(store_, job_, 2, "attempt-2/step-30", 10);
  EXPECT_EQ(Folders(), (std::set<std::string>{"attempt-1", "attempt-1/step-10", "attempt-2",
                                              "attempt-2/step-20", "attempt-2/step-30"}));
  RemoveOlderCheckpoints(store_, job_, {"attempt-2/step-30", 30}, "attempt-2/step-20");
  EXPECT_EQ(Folders(),
            (std::set<std::string>{"attempt-2", "attempt-2/step-20", "attempt-2/step-30"}));
  RemoveCheckpoints(store_, job_, 2, "");
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

TEST_F(CheckpointFoldersTest, SharedFilesOfOtherAttemptsGoWithTheirCheckpoints) {
  ShareInBoth();
  RemoveCheckpoints(store_, job_, 2, "attempt-1/step-20");
  EXPECT_EQ(Folders(),
            (std::set<std::string>{"attempt-1", "attempt-1/step-10", "attempt-1/step-20"}));
}

TEST_F(CheckpointFoldersTest, ARecordingKeepsWhatItsCheckpointsShare) {
  ShareInBoth();
  RemoveUnrecorded(store_, job_, 2, 20);
  EXPECT_EQ(Folders(), (std::set<std::string>{"attempt-1", "attempt-1/step-10", "attempt-1/step-20",
                                              "attempt-2", "attempt-2/step-20"}));
  const int64_t bytes = 9;  // of a shared file
  EXPECT_EQ(*RemoveUnusedShared(store_, job_, 3), 2 * bytes);
  for (const char* name : {"attempt-1/step-10", "attempt-1/step-20", "attempt-2/step-20"}) {
    ASSERT_EQ(RemoveCheckpoint(store_, JoinPath(job_, name)), absl::OkStatus());
  }
  // Attempt 2 may be running, and about to write a checkpoint.
  EXPECT_EQ(*RemoveUnusedShared(store_, job_, 2), bytes);
  EXPECT_EQ(Folders(), std::set<std::string>{"attempt-2"});
  EXPECT_EQ(*RemoveUnusedShared(store_, job_, 3), 0);
  EXPECT_TRUE(Folders().empty());
}

TEST_F(CheckpointFoldersTest, DamageOfASharedFileIsThatOfAllWhoShareIt) {
  Share(1, {"step-10", "step-20"});
  Share(2, {"step-20", "step-30"}, "unch@nged");
  const StoredCheckpoint other = *ReplaceCheckpoint(store_, job_, {"attempt-2/step-30", 30});
  EXPECT_EQ(other.within_job, "attempt-1/step-20") << "the other one of attempt 2 is no use either";
  EXPECT_EQ(FindCheckpoint(store_, job_, 30)->within_job, "");
  std::filesystem::remove(folder_ / "attempt-1/unchanged-rank-0");
  EXPECT_TRUE(MeansDamage(CheckCheckpoint(store_, JoinPath(job_, "attempt-1/step-20"), 20)));
  EXPECT_TRUE(ReplaceCheckpoint(store_, job_, other)->within_job.empty());
}

TEST_F(CheckpointFoldersTest, CheckpointWithinJobAcceptsFullAndRelativePaths) {
  EXPECT_EQ(CheckpointWithinJob("/data/checkpoints/job-1/attempt-2/step-10-attempt-2"),
            "attempt-2/step-10-attempt-2");
  EXPECT_EQ(CheckpointWithinJob("attempt-2/step-10-attempt-2"), "attempt-2/step-10-attempt-2");
  EXPECT_EQ(CheckpointWithinJob("/data/checkpoints/job-1/../../.."), "");
}

}  // namespace
}  // namespace espalier
