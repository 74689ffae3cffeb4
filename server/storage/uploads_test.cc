#include "server/storage/uploads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "base/file_system.h"
#include "base/sha256.h"
#include "base/testing/fake_clock.h"
#include "base/testing/faulty_file_system.h"
#include "storage/folder_checkpoint_store.h"

namespace espalier {
namespace {

constexpr char kName[] = "job-1/attempt-1/step-5/rank-0.safetensors";
const std::string kId(32, 'a');

class UploadsTest : public testing::Test {
 protected:
  UploadsTest()
      : root_(testing::TempDir() + "/uploads-" +
              testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove_all(root_);
  }

  Uploads::Stream Begin(const std::string& name = kName, const std::string& id = kId) {
    absl::StatusOr<Uploads::Stream> stream = uploads_.Begin(name, id);
    EXPECT_TRUE(stream.ok()) << stream.status();
    return *std::move(stream);
  }
  // The object's content; empty: there is none.
  std::string Content() {
    const absl::StatusOr<std::string> content = ReadObject(store_, kName, 1 << 20);
    return content.ok() ? *content : "";
  }
  bool AnyFile() const {
    if (!std::filesystem::exists(root_)) return false;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root_)) {
      if (entry.is_regular_file()) return true;
    }
    return false;
  }

  const std::string root_;
  FaultyFileSystem files_{NewPosixFileSystem()};
  FolderCheckpointStore store_{files_, root_};
  FakeClock clock_;
  Uploads uploads_{&store_, &clock_};
};

TEST_F(UploadsTest, AnotherStreamGoesOnWhereOneBroke) {
  Uploads::Stream first = Begin();
  EXPECT_EQ(first.received(), 0);
  ASSERT_EQ(first.Append(0, "abcdef"), absl::OkStatus());
  Uploads::Stream second = Begin();
  EXPECT_EQ(second.received(), 6);
  EXPECT_EQ(first.Append(6, "zz").code(), absl::StatusCode::kAborted) << "it has been replaced";
  ASSERT_EQ(second.Append(4, "efgh"), absl::OkStatus()) << "sent again from before the break";
  EXPECT_EQ(second.received(), 8);
  EXPECT_EQ(second.Append(9, "x").code(), absl::StatusCode::kInvalidArgument) << "a gap";
  EXPECT_EQ(Content(), "") << "visible only once it is whole";
  ASSERT_EQ(second.Commit(8, Sha256Hex("abcdefgh")), absl::OkStatus());
  EXPECT_EQ(Content(), "abcdefgh");
}

// The answer to a commit may be lost.
TEST_F(UploadsTest, ACommitMayBeRepeated) {
  Uploads::Stream first = Begin();
  ASSERT_EQ(first.Append(0, "abc"), absl::OkStatus());
  ASSERT_EQ(first.Commit(3, Sha256Hex("abc")), absl::OkStatus());
  Uploads::Stream again = Begin();
  EXPECT_EQ(again.received(), 3);
  EXPECT_EQ(again.Commit(3, Sha256Hex("abc")), absl::OkStatus());
  EXPECT_EQ(again.Commit(3, Sha256Hex("abd")).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Content(), "abc");
}

TEST_F(UploadsTest, WhatArrivedWrongIsNoObject) {
  for (const auto& [bytes, sha256] :
       {std::pair<int64_t, std::string>{3, Sha256Hex("abd")}, {4, Sha256Hex("abc")}}) {
    const std::string id = absl::StrCat(kId, bytes);
    Uploads::Stream stream = Begin(kName, id);
    ASSERT_EQ(stream.Append(0, "abc"), absl::OkStatus());
    EXPECT_EQ(stream.Commit(bytes, sha256).code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(stream.Commit(3, Sha256Hex("abc")).code(), absl::StatusCode::kAborted);
    EXPECT_FALSE(uploads_.Begin(kName, id).ok()) << "the worker begins a new one";
    EXPECT_FALSE(AnyFile());
  }
}

TEST_F(UploadsTest, AnUploadBelongsToOneObject) {
  Uploads::Stream stream = Begin();
  EXPECT_EQ(uploads_.Begin("job-1/other", kId).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(uploads_.Begin(kName, "short").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(stream.Append(0, "abc"), absl::OkStatus());
}

TEST_F(UploadsTest, WhatNobodyGoesOnWithIsRemoved) {
  ASSERT_EQ(Begin().Append(0, "abc"), absl::OkStatus());
  clock_.Advance(Uploads::kKeep / 2);
  uploads_.DropOld();
  EXPECT_TRUE(AnyFile());
  ASSERT_EQ(Begin().Append(3, "d"), absl::OkStatus());
  clock_.Advance(Uploads::kKeep + absl::Seconds(1));
  uploads_.DropOld();
  EXPECT_FALSE(AnyFile());
  EXPECT_EQ(Begin().received(), 0);
}

// It may be silent, or wait for its turn behind others' uploads.
TEST_F(UploadsTest, WhatHasAStreamStays) {
  ASSERT_EQ(Begin().Append(0, "abc"), absl::OkStatus());
  Uploads::Stream waiting = Begin();
  clock_.Advance(10 * Uploads::kKeep);
  uploads_.DropOld();
  EXPECT_EQ(waiting.received(), 3);
  EXPECT_EQ(waiting.Append(3, "d"), absl::OkStatus());
  EXPECT_EQ(waiting.Commit(4, Sha256Hex("abcd")), absl::OkStatus());
}

TEST_F(UploadsTest, AFullDiskEndsAnUploadAndLeavesNothing) {
  Uploads::Stream stream = Begin();
  files_.set_free_bytes(2);
  EXPECT_EQ(stream.Append(0, "abc").code(), absl::StatusCode::kResourceExhausted);
  files_.set_free_bytes(1 << 20);
  EXPECT_FALSE(AnyFile());
  const absl::Status over = uploads_.Begin(kName, kId).status();
  EXPECT_EQ(over.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(over.message()), testing::HasSubstr("No space left"))
      << "who tries it again learns why";
  Uploads::Stream again = Begin(kName, std::string(32, 'b'));
  ASSERT_EQ(again.Append(0, "abc"), absl::OkStatus());
  EXPECT_EQ(again.Commit(3, Sha256Hex("abc")), absl::OkStatus());
}

}  // namespace
}  // namespace espalier
