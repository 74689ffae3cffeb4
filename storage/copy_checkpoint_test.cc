#include "storage/copy_checkpoint.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "base/sha256.h"
#include "base/testing/faulty_file_system.h"
#include "storage/folder_checkpoint_store.h"

namespace espalier {
namespace {

std::string NewStoreFolder(const std::string& name) {
  const std::string path =
      absl::StrCat(testing::TempDir(), "/copy-checkpoint-",
                   testing::UnitTest::GetInstance()->current_test_info()->name(), "-", name);
  std::filesystem::remove_all(path);
  return path;
}

class CopyCheckpointTest : public testing::Test {
 protected:
  // Files of 5 MB that do not shrink, of 3 MB that do, of 2 MB that do if they are shuffled, and
  // one beside the folder.
  void Write(const std::string& folder, uint32_t seed) {
    std::mt19937 random(seed);
    std::string noise(5'000'000, '\0');
    for (char& c : noise) c = static_cast<char>(random());
    std::string floats(2'000'000, '\0');
    for (size_t i = 0; i < floats.size(); i += sizeof(uint32_t)) {
      const uint32_t bits = 0x3d000000u | (random() & 0x00ffffffu);
      std::memcpy(floats.data() + i, &bits, sizeof bits);
    }
    Manifest manifest;
    manifest.steps_done = 40;
    manifest.files = {
        Put(folder, "rank-0.safetensors", noise, false),
        Put(folder, "rank-1.safetensors", std::string(3'000'000, static_cast<char>(seed)), false),
        Put(folder, "rank-2.safetensors", floats, false),
        Put(folder, "unchanged-rank-0.safetensors", noise.substr(0, 1000), true)};
    ASSERT_EQ(WriteManifest(from_, folder, manifest), absl::OkStatus());
  }

  ManifestFile Put(const std::string& folder, const std::string& name, const std::string& content,
                   bool shared) {
    ManifestFile file{name, Sha256Hex(content), static_cast<int64_t>(content.size()), shared};
    auto upload = from_.Put(PathOf(folder, file));
    EXPECT_EQ((*upload)->Append(content.data(), file.bytes), absl::OkStatus());
    EXPECT_EQ((*upload)->Commit(), absl::OkStatus());
    return file;
  }

  absl::StatusOr<CopiedCheckpoint> Copy(bool compress = true, CopiedFiles* copied = nullptr) {
    return CopyCheckpoint(from_, kFolder, to_, kFolder, {.compress = compress}, copied);
  }

  // Names and sizes in a store.
  static std::map<std::string, int64_t> Objects(CheckpointStore& store) {
    std::map<std::string, int64_t> sizes;
    const auto listed = store.List("");
    EXPECT_TRUE(listed.ok()) << listed.status();
    for (const auto& object : *listed) sizes[object.name] = object.bytes;
    return sizes;
  }

  static std::string Content(CheckpointStore& store, const std::string& name) {
    return ReadObject(store, name, 1 << 30).value_or("");
  }

  static constexpr char kFolder[] = "job-1/attempt-1/step-40-attempt-1";
  const std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  FaultyFileSystem faulty_{NewPosixFileSystem()};
  FolderCheckpointStore from_{*files_, NewStoreFolder("from")};
  FolderCheckpointStore to_{faulty_, NewStoreFolder("to")};
};

TEST_F(CopyCheckpointTest, ReturnsWithTheSameBytesAndCompressesWhatShrinks) {
  Write(kFolder, 7);
  const auto copied = Copy();
  ASSERT_TRUE(copied.ok()) << copied.status();
  EXPECT_EQ(copied->steps_done, 40);
  EXPECT_EQ(copied->bytes, 10'001'000);
  EXPECT_LT(copied->copied_bytes, 6'600'000);
  const auto objects = Objects(to_);
  EXPECT_TRUE(objects.contains(absl::StrCat(kFolder, "/rank-0.safetensors")));
  EXPECT_TRUE(objects.contains(absl::StrCat(kFolder, "/rank-1.safetensors.zst")));
  EXPECT_TRUE(objects.contains(absl::StrCat(kFolder, "/rank-2.safetensors.shuffled")));
  EXPECT_TRUE(objects.contains("job-1/attempt-1/unchanged-rank-0.safetensors"));
  EXPECT_EQ(objects.size(), 5u);

  FolderCheckpointStore back(*files_, NewStoreFolder("back"));
  ASSERT_TRUE(CopyCheckpoint(to_, kFolder, back, "job-1/fetched/1/step", {}, nullptr).ok());
  for (const char* name :
       {"rank-0.safetensors", "rank-1.safetensors", "rank-2.safetensors", "manifest.json"}) {
    EXPECT_TRUE(Content(back, absl::StrCat("job-1/fetched/1/step/", name)) ==
                Content(from_, absl::StrCat(kFolder, "/", name)))
        << name;
  }
  EXPECT_TRUE(Content(back, "job-1/fetched/1/unchanged-rank-0.safetensors") ==
              Content(from_, "job-1/attempt-1/unchanged-rank-0.safetensors"));
}

TEST_F(CopyCheckpointTest, CopiesNothingTwice) {
  Write(kFolder, 7);
  CopiedFiles copied;
  // The disk fills up in the second file.
  faulty_.set_free_bytes(5'000'100);
  EXPECT_TRUE(absl::IsResourceExhausted(Copy(false, &copied).status()));
  EXPECT_TRUE(absl::IsNotFound(ReadManifest(to_, kFolder).status()));
  EXPECT_EQ(Objects(to_).size(), 1u);
  faulty_.set_free_bytes(1 << 30);
  auto again = Copy(false, &copied);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->copied_bytes, 5'001'000);
  again = Copy(false, nullptr);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->copied_bytes, 0);
}

TEST_F(CopyCheckpointTest, ReplacesAnotherCheckpointOfThisName) {
  Write(kFolder, 7);
  ASSERT_TRUE(Copy(true).ok());
  ASSERT_EQ(from_.Delete("job-1"), absl::OkStatus());
  Write(kFolder, 8);
  ASSERT_TRUE(Copy(false).ok());
  for (const char* name : {"/rank-1.safetensors", "/rank-2.safetensors"}) {
    EXPECT_TRUE(Content(to_, absl::StrCat(kFolder, name)) ==
                Content(from_, absl::StrCat(kFolder, name)));
  }
  EXPECT_EQ(Objects(to_).size(), 5u);
}

TEST_F(CopyCheckpointTest, NamesADamagedFileOnBothWays) {
  Write(kFolder, 7);
  ASSERT_TRUE(Copy().ok());
  const auto damage = [](const FolderCheckpointStore& store, const std::string& name) {
    std::fstream file(absl::StrCat(store.root(), "/", kFolder, "/", name));
    file.seekp(60);
    file.put('x');
    EXPECT_TRUE(file.good());
  };
  FolderCheckpointStore back(*files_, NewStoreFolder("back"));
  absl::Status status;
  for (const char* name : {"rank-2.safetensors.shuffled", "rank-1.safetensors.zst"}) {
    damage(to_, name);
    status = CopyCheckpoint(to_, kFolder, back, "job-1/fetched/1/step", {}, nullptr).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_NE(status.message().find(absl::StrCat(name, "' is damaged")), std::string::npos)
        << status;
    EXPECT_TRUE(absl::IsNotFound(ReadManifest(back, "job-1/fetched/1/step").status()));
  }

  damage(from_, "rank-0.safetensors");
  ASSERT_EQ(to_.Delete("job-1"), absl::OkStatus());
  status = Copy().status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_NE(status.message().find("rank-0.safetensors"), std::string::npos) << status;
  EXPECT_TRUE(absl::IsNotFound(ReadManifest(to_, kFolder).status()));
}

TEST_F(CopyCheckpointTest, EndsWhenItIsStopped) {
  Write(kFolder, 7);
  int asked = 0;
  const auto status = CopyCheckpoint(from_, kFolder, to_, kFolder,
                                     {.stopped = [&] { return ++asked > 3; }}, nullptr)
                          .status();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_TRUE(absl::IsNotFound(ReadManifest(to_, kFolder).status()));
}

}  // namespace
}  // namespace espalier
