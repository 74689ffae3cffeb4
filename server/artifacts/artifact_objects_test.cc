// Artifacts in a simulated object store.
#include "server/artifacts/artifact_objects.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/testing/fake_clock.h"
#include "base/testing/faulty_file_system.h"
#include "server/artifacts/artifact_store.h"
#include "server/store/sqlite_store.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Objects in memory, with faults that a test sets.
class SimulatedObjects : public CheckpointStore {
 public:
  absl::StatusOr<std::unique_ptr<Upload>> Put(const std::string& name) override {
    return std::make_unique<Writer>(this, name);
  }
  absl::Status PutIfAbsent(const std::string&, const std::string&) override {
    return absl::UnimplementedError("not used");
  }
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& name) override {
    absl::MutexLock lock(&mutex_);
    ++opened_;
    if (!reads_.ok()) return reads_;
    const auto found = objects_.find(name);
    if (found == objects_.end()) return absl::NotFoundError("no object " + name);
    return std::make_unique<File>(this, found->second);
  }
  absl::StatusOr<std::vector<Object>> List(const std::string&) override {
    return absl::UnimplementedError("not used");
  }
  absl::Status DeleteExcept(const std::string& name, const std::vector<std::string>&) override {
    absl::MutexLock lock(&mutex_);
    if (!deletes_.ok()) return deletes_;
    for (auto it = objects_.begin(); it != objects_.end();) {
      it = absl::StartsWith(it->first, name + "/") ? objects_.erase(it) : std::next(it);
    }
    return absl::OkStatus();
  }

  void FailWrites(absl::Status status) { Set(&writes_, std::move(status)); }
  void FailReads(absl::Status status) { Set(&reads_, std::move(status)); }
  void FailDeletes(absl::Status status) { Set(&deletes_, std::move(status)); }
  // Reads wait until it is false.
  void HoldReads(bool hold) {
    absl::MutexLock lock(&mutex_);
    hold_ = hold;
  }
  int opened() {
    absl::MutexLock lock(&mutex_);
    return opened_;
  }
  std::map<std::string, std::string> objects() {
    absl::MutexLock lock(&mutex_);
    return objects_;
  }
  void Replace(const std::string& name, const std::string& content) {
    absl::MutexLock lock(&mutex_);
    objects_.at(name) = content;
  }
  void Insert(const std::string& name, const std::string& content) {
    absl::MutexLock lock(&mutex_);
    objects_[name] = content;
  }
  void Erase(const std::string& name) {
    absl::MutexLock lock(&mutex_);
    objects_.erase(name);
  }
  bool WaitForCount(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto reached = [&] {
      mutex_.AssertReaderHeld();
      return objects_.size() == count;
    };
    return mutex_.AwaitWithTimeout(absl::Condition(&reached), absl::Seconds(30));
  }

 private:
  class Writer : public Upload {
   public:
    Writer(SimulatedObjects* store, std::string name) : store_(store), name_(std::move(name)) {}
    absl::Status Append(const void* data, int64_t bytes) override {
      content_.append(static_cast<const char*>(data), static_cast<size_t>(bytes));
      return absl::OkStatus();
    }
    absl::Status Commit() override {
      absl::MutexLock lock(&store_->mutex_);
      if (!store_->writes_.ok() && ++store_->written_ > 1) return store_->writes_;
      store_->objects_[name_] = content_;
      return absl::OkStatus();
    }

   private:
    SimulatedObjects* const store_;
    const std::string name_;
    std::string content_;
  };

  class File : public ReadableFile {
   public:
    File(SimulatedObjects* store, std::string content)
        : store_(store), content_(std::move(content)) {}
    int64_t size() const override { return static_cast<int64_t>(content_.size()); }
    absl::Status Read(int64_t offset, int64_t bytes, void* out) const override {
      absl::MutexLock lock(&store_->mutex_);
      const auto let_go = [this] {
        store_->mutex_.AssertReaderHeld();
        return !store_->hold_;
      };
      store_->mutex_.Await(absl::Condition(&let_go));
      std::memcpy(out, content_.data() + offset, static_cast<size_t>(bytes));
      return absl::OkStatus();
    }

   private:
    SimulatedObjects* const store_;
    const std::string content_;
  };

  void Set(absl::Status* which, absl::Status status) {
    absl::MutexLock lock(&mutex_);
    *which = std::move(status);
    written_ = 0;
  }

  absl::Mutex mutex_;
  std::map<std::string, std::string> objects_ ABSL_GUARDED_BY(mutex_);
  absl::Status reads_ ABSL_GUARDED_BY(mutex_), deletes_ ABSL_GUARDED_BY(mutex_);
  absl::Status writes_ ABSL_GUARDED_BY(mutex_);  // of the second and later writes since it was set
  int written_ ABSL_GUARDED_BY(mutex_) = 0, opened_ ABSL_GUARDED_BY(mutex_) = 0;
  bool hold_ ABSL_GUARDED_BY(mutex_) = false;
};

class ArtifactObjectsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    base_ = ::testing::TempDir() + "/artifact_objects_" +
            ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(base_);
    fs::create_directories(base_);
    auto store = SqliteStore::Open(base_ + "/db");
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    ASSERT_TRUE(Lead("a").ok());
  }

  // Another coordinator leads, with the same job store and a disk of its own.
  absl::Status Lead(const std::string& name, bool with_objects = true) {
    artifacts_.reset();
    stored_.reset();
    root_ = base_ + "/" + name;
    fs::create_directories(root_);
    if (with_objects) {
      stored_ =
          std::make_unique<ArtifactObjects>(&objects_, "s3://bucket/prefix", &files_, store_.get(),
                                            std::make_shared<std::atomic<bool>>(false));
    }
    auto artifacts = ArtifactStore::Open(root_, &files_, store_.get(), &clock_, {}, stored_.get());
    if (!artifacts.ok()) return artifacts.status();
    artifacts_ = *std::move(artifacts);
    return absl::OkStatus();
  }

  absl::Status Put(const std::string& name, const std::map<std::string, std::string>& files,
                   bool replace = false) {
    auto upload = artifacts_->Begin({name, v1::Artifact::DATASET, {}, ""}, replace);
    if (!upload.ok()) return upload.status();
    for (const auto& [file, content] : files) {
      absl::Status status = (*upload)->StartFile(file);
      if (status.ok()) status = (*upload)->Append(content);
      if (!status.ok()) return status;
    }
    return (*upload)->Commit().status();
  }

  static std::string ContentOf(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }

  // Or the error.
  std::string Content(const std::string& name, const std::string& file) {
    auto folder = artifacts_->Pin(name);
    if (!folder.ok()) return folder.status().ToString();
    return ContentOf(folder->path() + "/" + file);
  }

  size_t Count(const std::string& folder) const {
    size_t count = 0;
    for (auto& entry : fs::directory_iterator(root_ + "/" + folder)) {
      (void)entry;
      ++count;
    }
    return count;
  }

  std::string ObjectOf(const std::string& file) {
    for (const auto& [name, content] : objects_.objects()) {
      if (absl::EndsWith(name, "/" + file)) return name;
    }
    return "";
  }

  std::string base_, root_;
  FakeClock clock_;
  FaultyFileSystem files_{NewPosixFileSystem()};
  SimulatedObjects objects_;
  std::unique_ptr<SqliteStore> store_;
  std::unique_ptr<ArtifactObjects> stored_;
  std::unique_ptr<ArtifactStore> artifacts_;
};

TEST_F(ArtifactObjectsTest, ACoordinatorWithAnEmptyDiskHasWhatWasUploaded) {
  ASSERT_TRUE(Put("org/model", {{"x", "hello"}, {"sub/y", "world"}, {"empty", ""}}).ok());
  ASSERT_TRUE(Put("data", {{"z", "rows"}}).ok());
  EXPECT_EQ(Content("org/model", "x"), "hello");
  EXPECT_EQ(objects_.opened(), 0);  // it is here already
  ASSERT_TRUE(Lead("b").ok());
  EXPECT_EQ(Count("data"), 0u);
  EXPECT_EQ(Content("org/model", "sub/y"), "world");
  EXPECT_EQ(Content("org/model", "empty"), "");
  EXPECT_EQ(objects_.opened(), 3);
  EXPECT_EQ(Content("org/model", "x"), "hello");
  EXPECT_EQ(objects_.opened(), 3);
  auto file = artifacts_->SingleFile("data");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(ContentOf(*file), "rows");
  EXPECT_EQ(Count("data"), 2u);
  EXPECT_EQ(Count("incoming"), 0u);
  // What the first one has of it is still right, and what was replaced meanwhile is not used.
  ASSERT_TRUE(Put("data", {{"z", "other rows"}}, true).ok());
  const int opened = objects_.opened();
  ASSERT_TRUE(Lead("a").ok());
  EXPECT_EQ(Content("org/model", "x"), "hello");
  EXPECT_EQ(objects_.opened(), opened);
  EXPECT_EQ(Content("data", "z"), "other rows");
  EXPECT_EQ(Count("data"), 2u);
}

TEST_F(ArtifactObjectsTest, FilesAreFetchedOnceForAllCallers) {
  ASSERT_TRUE(Put("model", {{"x", "hello"}, {"y", "world"}}).ok());
  ASSERT_TRUE(Lead("b").ok());
  objects_.HoldReads(true);
  std::vector<std::thread> callers;
  for (int i = 0; i < 8; ++i) {
    callers.emplace_back([&] { EXPECT_EQ(Content("model", "y"), "world"); });
  }
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_TRUE(artifacts_->Find("model").ok());  // the others go on
  objects_.HoldReads(false);
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(objects_.opened(), 2);
}

TEST_F(ArtifactObjectsTest, AnUploadThatTheStoreRefusesLeavesNothing) {
  objects_.FailWrites(absl::UnavailableError("503 SlowDown"));
  const absl::Status put = Put("model", {{"x", "hello"}, {"y", "world"}});
  EXPECT_TRUE(absl::IsUnavailable(put)) << put;
  EXPECT_THAT(put.ToString(), AllOf(HasSubstr("'model'"), HasSubstr("s3://bucket/prefix"),
                                    HasSubstr("503 SlowDown")));
  EXPECT_FALSE(artifacts_->Find("model").ok());
  EXPECT_TRUE(objects_.WaitForCount(0));
  EXPECT_EQ(Count("data"), 0u);
  EXPECT_EQ(Count("incoming"), 0u);
  objects_.FailWrites(absl::OkStatus());
  EXPECT_TRUE(Put("model", {{"x", "hello"}}).ok());
}

TEST_F(ArtifactObjectsTest, WhatACrashLeavesBehindIsRemovedAtTheNextStart) {
  ASSERT_TRUE(Put("kept", {{"k", "1"}}).ok());
  // As if the process ended between the last object and the row, and in a deletion and a
  // replacement behind the row.
  objects_.FailDeletes(absl::UnavailableError("503"));
  v1::Artifact artifact = *artifacts_->Find("kept");
  const auto unfinished = stored_->Upload(artifact, *artifacts_->Folder("kept"), nullptr);
  ASSERT_TRUE(unfinished.ok()) << unfinished.status();
  ASSERT_TRUE(Put("deleted", {{"d", "2"}}).ok());
  ASSERT_TRUE(artifacts_->Delete("deleted", nullptr).ok());
  ASSERT_TRUE(Put("replaced", {{"r", "3"}}).ok());
  ASSERT_TRUE(Put("replaced", {{"r", "4"}}, true).ok());
  // And before the row is gone.
  const std::string folder = fs::path(*artifacts_->Folder("kept")).filename();
  ASSERT_TRUE(stored_->Note(folder).ok());
  ASSERT_TRUE(Lead("b").ok());
  EXPECT_EQ(objects_.objects().size(), 5u);  // the store still refuses
  objects_.FailDeletes(absl::OkStatus());
  ASSERT_TRUE(Lead("c").ok());
  EXPECT_TRUE(objects_.WaitForCount(2));
  EXPECT_EQ(Content("kept", "k"), "1");
  EXPECT_EQ(Content("replaced", "r"), "4");
  // A leader that was stopped still had an object on its way.
  objects_.Insert(absl::StrCat("artifacts/", *unfinished, "/k"), "1");
  ASSERT_TRUE(Lead("d").ok());
  EXPECT_TRUE(objects_.WaitForCount(2));
  EXPECT_EQ(Content("kept", "k"), "1");
  for (int i = 0; i < 1000 && !store_->GetBlob("artifact-objects/to-remove")->empty(); ++i) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_EQ(*store_->GetBlob("artifact-objects/to-remove"), "");
}

// Of a backup that is older than they are.
TEST_F(ArtifactObjectsTest, ObjectsThatNobodyHasMarkedAreNotRemoved) {
  ASSERT_TRUE(Put("model", {{"x", "hello"}}).ok());
  ASSERT_TRUE(store_->DeleteArtifact("model", nullptr).ok());
  ASSERT_TRUE(Lead("b").ok());
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_EQ(objects_.objects().size(), 1u);
}

TEST_F(ArtifactObjectsTest, DamagedAndMissingObjectsAreToldByTheArtifactsName) {
  ASSERT_TRUE(Put("model", {{"x", "hello"}, {"y", "world"}}).ok());
  ASSERT_TRUE(Lead("b").ok());
  const std::string object = ObjectOf("x");
  objects_.Replace(object, "jello");
  EXPECT_THAT(Content("model", "x"),
              AllOf(HasSubstr("DATA_LOSS"), HasSubstr("'model'"), HasSubstr("expected")));
  EXPECT_EQ(Count("data"), 0u);
  EXPECT_EQ(Count("incoming"), 0u);
  objects_.Erase(object);
  EXPECT_THAT(Content("model", "x"),
              AllOf(HasSubstr("DATA_LOSS"), HasSubstr("'model'"), HasSubstr("'x'"),
                    HasSubstr("s3://bucket/prefix/artifacts/model@r")));
  objects_.FailReads(absl::UnavailableError("503 SlowDown"));
  EXPECT_THAT(Content("model", "x"),
              AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("'model'"), HasSubstr("503")));
}

TEST_F(ArtifactObjectsTest, ADiskWithoutRoomIsTold) {
  ASSERT_TRUE(Put("model", {{"x", std::string(1000, 'x')}}).ok());
  ASSERT_TRUE(Lead("b").ok());
  files_.set_free_bytes(500);
  EXPECT_THAT(Content("model", "x"), AllOf(HasSubstr("RESOURCE_EXHAUSTED"), HasSubstr("'model'"),
                                           HasSubstr("No space left")));
  EXPECT_EQ(Count("incoming"), 0u);
  files_.set_free_bytes(1 << 20);
  EXPECT_EQ(Content("model", "x"), std::string(1000, 'x'));
}

TEST_F(ArtifactObjectsTest, HeldFilesStayWhenTheirObjectsAreRemoved) {
  ASSERT_TRUE(Put("model", {{"x", "hello"}}).ok());
  ASSERT_TRUE(Lead("b").ok());
  {
    auto held = artifacts_->Pin("model");
    ASSERT_TRUE(held.ok());
    ASSERT_TRUE(artifacts_->Delete("model", nullptr).ok());
    EXPECT_TRUE(objects_.WaitForCount(0));
    EXPECT_EQ(ContentOf(held->path() + "/x"), "hello");
  }
  EXPECT_EQ(Count("data"), 0u);
}

TEST_F(ArtifactObjectsTest, TheEndDoesNotWaitForFiles) {
  ASSERT_TRUE(Put("model", {{"x", "hello"}}).ok());
  ASSERT_TRUE(Lead("b").ok());
  stored_->EndDownloads();
  EXPECT_THAT(Content("model", "x"), AllOf(HasSubstr("CANCELLED"), HasSubstr("is stopping")));
  EXPECT_EQ(Count("incoming"), 0u);
}

TEST_F(ArtifactObjectsTest, AnUploadThatNobodyWaitsForEnds) {
  auto upload = artifacts_->Begin({"model", v1::Artifact::DATASET, {}, ""}, false);
  ASSERT_TRUE(upload.ok());
  ASSERT_TRUE((*upload)->StartFile("x").ok());
  ASSERT_TRUE((*upload)->Append("hello").ok());
  int asked = 0;
  const auto gone = [&] {
    return ++asked > 1 ? absl::CancelledError("the caller has gone") : absl::OkStatus();
  };
  EXPECT_TRUE(absl::IsCancelled((*upload)->Commit(nullptr, gone).status()));
  EXPECT_FALSE(artifacts_->Find("model").ok());
  EXPECT_TRUE(objects_.WaitForCount(0));
}

TEST_F(ArtifactObjectsTest, OfTwoUploadsOfANameOneLeavesNothing) {
  auto upload = artifacts_->Begin({"model", v1::Artifact::DATASET, {}, ""}, false);
  ASSERT_TRUE(upload.ok());
  ASSERT_TRUE((*upload)->StartFile("x").ok());
  ASSERT_TRUE((*upload)->Append("hello").ok());
  int asked = 0;
  const auto meanwhile = [&] {
    return ++asked == 2 ? Put("model", {{"y", "world"}}) : absl::OkStatus();
  };
  EXPECT_TRUE(absl::IsAlreadyExists((*upload)->Commit(nullptr, meanwhile).status()));
  EXPECT_TRUE(objects_.WaitForCount(1));
  EXPECT_EQ(Content("model", "y"), "world");
}

TEST_F(ArtifactObjectsTest, ArtifactsOfTheFolderAreStoredFirst) {
  ASSERT_TRUE(Lead("c", /*with_objects=*/false).ok());
  ASSERT_TRUE(Put("old", {{"x", "hello"}, {"sub/y", "world"}}).ok());
  const absl::Status elsewhere = Lead("d");
  EXPECT_TRUE(absl::IsFailedPrecondition(elsewhere));
  EXPECT_THAT(elsewhere.ToString(), AllOf(HasSubstr("'old'"), HasSubstr("data folder has it")));
  ASSERT_TRUE(Lead("c").ok());
  EXPECT_EQ(Content("old", "x"), "hello");
  EXPECT_EQ(objects_.opened(), 0);
  ASSERT_TRUE(Lead("d").ok());
  EXPECT_EQ(Content("old", "sub/y"), "world");
  // There is no way back that would lose them without a word.
  ASSERT_TRUE(store_->PutBlob(kArtifactStoreBlob, "s3://bucket/prefix").ok());
  const absl::Status without = Lead("c", /*with_objects=*/false);
  EXPECT_TRUE(absl::IsFailedPrecondition(without));
  EXPECT_THAT(without.ToString(),
              AllOf(HasSubstr("'old'"), HasSubstr("--artifact-store=s3://bucket/prefix")));
}

}  // namespace
}  // namespace espalier
