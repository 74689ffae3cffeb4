#include "storage/folder_checkpoint_store.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "storage/checkpoint_store_contract.h"
#include "storage/store_file_system.h"

namespace espalier {
namespace {

std::string NewFolder() {
  const std::string path = testing::TempDir() + "/folder-store";
  std::filesystem::remove_all(path);
  return path;
}

class TestedFolder : public TestedStore {
 public:
  CheckpointStore& store() override { return store_; }

 private:
  const std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  FolderCheckpointStore store_{*files_, NewFolder()};
};

INSTANTIATE_TEST_SUITE_P(Folder, CheckpointStoreContract,
                         testing::Values([]() -> std::unique_ptr<TestedStore> {
                           return std::make_unique<TestedFolder>();
                         }));

// A worker must not be led to other files by what lies in the folder.
TEST(FolderCheckpointStore, FollowsNoLinkOutOfItsFolder) {
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  FolderCheckpointStore store(*files, NewFolder());
  std::filesystem::create_directories(store.root() + "/real");
  std::ofstream(store.root() + "/real/file") << "inside";
  std::filesystem::create_directory_symlink("/etc", store.root() + "/link");
  std::filesystem::create_directory_symlink("real", store.root() + "/within");
  const auto denied = absl::StatusCode::kPermissionDenied;
  EXPECT_EQ(store.Open("link/passwd").status().code(), denied);
  EXPECT_EQ(store.Put("link/new").status().code(), denied);
  EXPECT_EQ(store.PutIfAbsent("link/new", "x").code(), denied);
  EXPECT_EQ(store.List("link").status().code(), denied);
  EXPECT_EQ(store.Delete("link/new").code(), denied);
  EXPECT_EQ(*ReadObject(store, "within/file", 100), "inside");
}

// Clients push the first examples of a job while its old checkpoints are removed.
TEST(FolderCheckpointStore, WhatIsKeptMayBeMadeMeanwhile) {
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  FolderCheckpointStore store(*files, NewFolder());
  for (int i = 0; i < 200; ++i) {
    const std::string kept = absl::StrCat("job/stream-", i);
    ASSERT_TRUE(store.PutIfAbsent("job/old", "x").ok());
    absl::Status put;
    std::thread make([&] { put = store.PutIfAbsent(kept + "/examples", "x"); });
    EXPECT_TRUE(store.DeleteExcept("job", {kept}).ok());
    make.join();
    // It may fail, if the empty folder was just removed, but not be lost.
    EXPECT_EQ(store.Open(kept + "/examples").ok(), put.ok()) << put;
  }
}

// Else a checkpoint would seem to be gone while others are removed.
TEST(FolderCheckpointStore, AListHasAllThatStays) {
  constexpr int kStay = 10, kGo = 40;
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  FolderCheckpointStore store(*files, NewFolder());
  for (int i = 0; i < kStay; ++i) {
    ASSERT_TRUE(store.PutIfAbsent(absl::StrCat("job/stays-", i, "/x"), "x").ok());
  }
  int listed = 0;
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kGo; ++i) {
      const std::string folder = absl::StrCat(store.root(), "/job/goes-", i);
      std::filesystem::create_directories(folder);
      std::ofstream(folder + "/x") << "x";
    }
    std::atomic<bool> removed = false;
    std::thread remove([&] {
      for (int i = 0; i < kGo; ++i) EXPECT_TRUE(store.Delete(absl::StrCat("job/goes-", i)).ok());
      removed = true;
    });
    while (!removed) {
      const auto objects = store.List("job");
      if (!objects.ok()) continue;  // it says so
      ++listed;
      int stay = 0;
      for (const ObjectReader::Object& object : *objects) {
        stay += absl::StartsWith(object.name, "job/stays-") ? 1 : 0;
      }
      EXPECT_EQ(stay, kStay);
    }
    remove.join();
  }
  EXPECT_GT(listed, 0);
}

// What reads models sees the folder's files, and cannot change them.
TEST(StoreFileSystem, ShowsObjectsAsFilesOfFolders) {
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  FolderCheckpointStore store(*files, NewFolder());
  for (const char* name : {"lm/config.json", "lm/sub/a", "lm/sub/b", "other"}) {
    ASSERT_TRUE(store.PutIfAbsent(name, name).ok());
  }
  StoreFileSystem shown(store);
  EXPECT_EQ(*shown.List("lm"), (std::vector<std::string>{"config.json", "sub"}));
  EXPECT_EQ(*shown.List(""), (std::vector<std::string>{"lm", "other"}));
  EXPECT_EQ(shown.List("none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(*ReadWholeFile(shown, "lm/sub/b", 100), "lm/sub/b");
  EXPECT_EQ(shown.Create("lm/new").status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(shown.Remove("other").code(), absl::StatusCode::kPermissionDenied);
}

}  // namespace
}  // namespace espalier
