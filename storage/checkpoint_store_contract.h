// What every CheckpointStore does. Include it in one source of a test and instantiate it:
//   INSTANTIATE_TEST_SUITE_P(Folder, CheckpointStoreContract, ::testing::Values(MakeFolderStore));
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/checkpoint_store.h"

namespace espalier {

// An empty store, with what it needs while it is tested (a folder, a server).
class TestedStore {
 public:
  virtual ~TestedStore() = default;
  virtual CheckpointStore& store() = 0;
};

using MakeTestedStore = std::unique_ptr<TestedStore> (*)();

class CheckpointStoreContract : public ::testing::TestWithParam<MakeTestedStore> {
 protected:
  void SetUp() override {
    tested_ = GetParam()();
    ASSERT_NE(tested_, nullptr);
  }

  CheckpointStore& store() { return tested_->store(); }

  static absl::Status Append(CheckpointStore::Upload& upload, const std::string& bytes) {
    return upload.Append(bytes.data(), static_cast<int64_t>(bytes.size()));
  }

  absl::Status Write(const std::string& name, const std::string& content) {
    auto upload = store().Put(name);
    if (!upload.ok()) return upload.status();
    if (absl::Status s = Append(**upload, content); !s.ok()) return s;
    return (*upload)->Commit();
  }

  // The content, or the error's text.
  std::string Content(const std::string& name) {
    auto file = store().Open(name);
    if (!file.ok()) return file.status().ToString();
    const absl::StatusOr<std::string> content = ReadWhole(**file, int64_t{1} << 30);
    return content.ok() ? *content : content.status().ToString();
  }

  // "name:bytes" of each object.
  std::vector<std::string> Listed(const std::string& folder) {
    const auto objects = store().List(folder);
    if (!objects.ok()) return {objects.status().ToString()};
    std::vector<std::string> listed;
    for (const CheckpointStore::Object& object : *objects) {
      listed.push_back(absl::StrCat(object.name, ":", object.bytes));
    }
    return listed;
  }

  // Different bytes at different places, among them all values.
  static std::string Bytes(int64_t count, uint32_t seed) {
    std::string bytes(static_cast<size_t>(count), '\0');
    for (char& byte : bytes) {
      seed = seed * 1664525 + 1013904223;
      byte = static_cast<char>(seed >> 24);
    }
    return bytes;
  }

 private:
  std::unique_ptr<TestedStore> tested_;
};

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CheckpointStoreContract);

TEST_P(CheckpointStoreContract, AnObjectIsReadByRanges) {
  const std::string bytes = Bytes(1000, 1);
  ASSERT_TRUE(Write("job/attempt-1/step-4/rank-0.safetensors", bytes).ok());
  auto file = store().Open("job/attempt-1/step-4/rank-0.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->size(), 1000);
  for (const auto& [offset, length] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 1000}, {0, 1}, {999, 1}, {300, 500}, {100, 0}, {1000, 0}}) {
    std::string got(static_cast<size_t>(length), '\0');
    const absl::Status read = (*file)->Read(offset, length, got.data());
    EXPECT_TRUE(read.ok()) << offset << " " << length << " " << read;
    EXPECT_EQ(got, bytes.substr(static_cast<size_t>(offset), static_cast<size_t>(length)));
  }
  std::string more(10, '\0');
  EXPECT_EQ((*file)->Read(995, 10, more.data()).code(), absl::StatusCode::kOutOfRange);
}

TEST_P(CheckpointStoreContract, EmptyObjectsExist) {
  ASSERT_TRUE(Write("job/empty", "").ok());
  EXPECT_EQ(Content("job/empty"), "");
  EXPECT_THAT(Listed("job"), ::testing::ElementsAre("job/empty:0"));
}

TEST_P(CheckpointStoreContract, LargeObjectsArriveInPieces) {
  const std::string bytes = Bytes((int64_t{20} << 20) + 12345, 7);
  auto upload = store().Put("job/large");
  ASSERT_TRUE(upload.ok()) << upload.status();
  for (size_t at = 0, piece = 1; at < bytes.size(); at += piece, piece = piece * 3 + 1) {
    const absl::Status appended = Append(**upload, bytes.substr(at, piece));
    ASSERT_TRUE(appended.ok()) << appended;
  }
  const absl::Status committed = (*upload)->Commit();
  ASSERT_TRUE(committed.ok()) << committed;

  auto file = store().Open("job/large");
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ((*file)->size(), static_cast<int64_t>(bytes.size()));
  std::string small(bytes.size(), '\0');  // in many small reads, as the values of small tensors
  constexpr int64_t kPiece = 50'001;
  for (int64_t at = 0; at < (*file)->size(); at += kPiece) {
    const int64_t length = std::min(kPiece, (*file)->size() - at);
    ASSERT_TRUE((*file)->Read(at, length, small.data() + at).ok());
  }
  EXPECT_TRUE(small == bytes);
  EXPECT_TRUE(Content("job/large") == bytes);  // in one
}

TEST_P(CheckpointStoreContract, SeveralThreadsReadOneObject) {
  const std::string bytes = Bytes(3 << 20, 9);
  ASSERT_TRUE(Write("job/shared", bytes).ok());
  auto file = store().Open("job/shared");
  ASSERT_TRUE(file.ok()) << file.status();
  std::atomic<int> good = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      std::string got(100'000, '\0');
      bool same = true;
      for (int64_t at = i * 1000; at + 100'000 <= (*file)->size(); at += 250'000) {
        same = same && (*file)->Read(at, 100'000, got.data()).ok() &&
               bytes.compare(static_cast<size_t>(at), 100'000, got) == 0;
      }
      good += same ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 4);
}

TEST_P(CheckpointStoreContract, AnObjectAppearsWhole) {
  auto upload = store().Put("job/object");
  ASSERT_TRUE(upload.ok()) << upload.status();
  ASSERT_TRUE(Append(**upload, Bytes(9 << 20, 2)).ok());
  EXPECT_THAT(Listed(""), ::testing::IsEmpty());
  EXPECT_EQ(store().Open("job/object").status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE((*upload)->Commit().ok());
  EXPECT_TRUE(Content("job/object") == Bytes(9 << 20, 2));
}

TEST_P(CheckpointStoreContract, AnUploadWithoutCommitChangesNothing) {
  ASSERT_TRUE(Write("job/object", "former").ok());
  for (const int64_t size : {int64_t{10}, int64_t{9} << 20}) {
    auto upload = store().Put("job/object");
    ASSERT_TRUE(upload.ok()) << upload.status();
    ASSERT_TRUE(Append(**upload, Bytes(size, 3)).ok());
    upload->reset();
    EXPECT_EQ(Content("job/object"), "former");
    EXPECT_THAT(Listed(""), ::testing::ElementsAre("job/object:6"));
  }
}

TEST_P(CheckpointStoreContract, PutReplaces) {
  ASSERT_TRUE(Write("job/object", "the former one").ok());
  ASSERT_TRUE(Write("job/object", "the next").ok());
  EXPECT_EQ(Content("job/object"), "the next");
}

TEST_P(CheckpointStoreContract, PutIfAbsentKeepsTheFirst) {
  EXPECT_TRUE(store().PutIfAbsent("job/manifest.json", "first").ok());
  EXPECT_TRUE(store().PutIfAbsent("job/manifest.json", "first").ok());  // a call that is repeated
  const absl::Status second = store().PutIfAbsent("job/manifest.json", "second");
  EXPECT_EQ(second.code(), absl::StatusCode::kAlreadyExists) << second;
  EXPECT_THAT(std::string(second.message()), ::testing::HasSubstr("job/manifest.json"));
  EXPECT_EQ(Content("job/manifest.json"), "first");
}

TEST_P(CheckpointStoreContract, OneOfSeveralIsFirst) {
  std::atomic<int> won = 0, lost = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      const absl::Status put =
          store().PutIfAbsent("job/manifest.json", absl::StrCat("manifest of ", i));
      won += put.ok() ? 1 : 0;
      lost += absl::IsAlreadyExists(put) ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(won, 1);
  EXPECT_EQ(lost, 7);
}

TEST_P(CheckpointStoreContract, ListsWhatIsBeneath) {
  for (const char* name : {"a/x/2", "a/x/10", "a/y", "ab/z", "a.b/c"}) {
    ASSERT_TRUE(Write(name, name).ok());
  }
  EXPECT_THAT(Listed("a"), ::testing::ElementsAre("a/x/10:6", "a/x/2:5", "a/y:3"));
  EXPECT_THAT(Listed("a/x"), ::testing::ElementsAre("a/x/10:6", "a/x/2:5"));
  EXPECT_THAT(Listed("a/y"), ::testing::IsEmpty());  // an object, no folder
  EXPECT_THAT(Listed("b"), ::testing::IsEmpty());
  EXPECT_THAT(Listed(""),
              ::testing::ElementsAre("a.b/c:5", "a/x/10:6", "a/x/2:5", "a/y:3", "ab/z:4"));
}

TEST_P(CheckpointStoreContract, DeleteRemovesTheObjectAndWhatIsBeneath) {
  for (const char* name : {"a/x/1", "a/x/2", "a/y", "ab/z", "c"}) {
    ASSERT_TRUE(Write(name, name).ok());
  }
  EXPECT_TRUE(store().Delete("a/x").ok());
  EXPECT_THAT(Listed(""), ::testing::ElementsAre("a/y:3", "ab/z:4", "c:1"));
  EXPECT_TRUE(store().Delete("c").ok());
  EXPECT_TRUE(store().Delete("a").ok());
  EXPECT_THAT(Listed(""), ::testing::ElementsAre("ab/z:4"));
  EXPECT_TRUE(store().Delete("a").ok());  // there is nothing
  EXPECT_EQ(store().Open("a/y").status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Write("a/y", "again").ok());
  EXPECT_EQ(Content("a/y"), "again");
}

TEST_P(CheckpointStoreContract, DeleteExceptKeepsWhatItNames) {
  for (const char* name : {"a/x/1", "a/x/2", "a/xy/1", "a/y/z/1", "a/y/z/2", "a/w", "b/x/1"}) {
    ASSERT_TRUE(Write(name, name).ok());
  }
  // Uploads that were begun are not kept either.
  auto upload = store().Put("a/v/incomplete");
  ASSERT_TRUE(upload.ok()) << upload.status();
  ASSERT_TRUE(Append(**upload, Bytes(9 << 20, 4)).ok());
  EXPECT_TRUE(store().DeleteExcept("a", {"a/x", "a/y/z/2", "a/none"}).ok());
  EXPECT_THAT(Listed(""), ::testing::ElementsAre("a/x/1:5", "a/x/2:5", "a/y/z/2:7", "b/x/1:5"));
  EXPECT_FALSE((*upload)->Commit().ok());
  EXPECT_TRUE(store().DeleteExcept("a", {"a/none"}).ok());
  EXPECT_THAT(Listed(""), ::testing::ElementsAre("b/x/1:5"));
}

TEST_P(CheckpointStoreContract, AMissingObjectIsNamed) {
  const absl::Status opened = store().Open("job/attempt-2/none").status();
  EXPECT_EQ(opened.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(opened.message()), ::testing::HasSubstr("job/attempt-2/none"));
}

TEST_P(CheckpointStoreContract, BadNamesAreRefused) {
  ASSERT_TRUE(Write("a/b", "kept").ok());
  for (const char* name : {"/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "/"}) {
    const auto bad = absl::StatusCode::kInvalidArgument;
    EXPECT_EQ(store().Put(name).status().code(), bad) << name;
    EXPECT_EQ(store().PutIfAbsent(name, "x").code(), bad) << name;
    EXPECT_EQ(store().Open(name).status().code(), bad) << name;
    EXPECT_EQ(store().List(name).status().code(), bad) << name;
    EXPECT_EQ(store().Delete(name).code(), bad) << name;
  }
  EXPECT_EQ(store().Delete("").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store().Put("").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Listed(""), ::testing::ElementsAre("a/b:4"));
}

}  // namespace espalier
