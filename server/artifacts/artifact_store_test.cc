#include "server/artifacts/artifact_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "base/sha256.h"
#include "base/testing/fake_clock.h"
#include "base/testing/faulty_file_system.h"
#include "server/store/sqlite_store.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

class ArtifactsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = ::testing::TempDir() + "/artifacts_" +
            ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(root_);
    fs::create_directories(root_);
    Reopen();
  }
  void Reopen() {
    artifacts_.reset();
    store_.reset();
    auto store = SqliteStore::Open(root_ + "/db");
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    auto artifacts =
        ArtifactStore::Open(root_, &files_, store_.get(), &clock_,
                            {.max_files = 3, .max_bytes = 1000, .max_chunk_bytes = 600});
    ASSERT_TRUE(artifacts.ok()) << artifacts.status();
    artifacts_ = *std::move(artifacts);
  }
  absl::Status Put(const std::string& name, const std::map<std::string, std::string>& files,
                   bool replace = false, const ArtifactRemoval& how = {}) {
    auto upload = artifacts_->Begin({name, v1::Artifact::DATASET, {}, ""}, replace, how);
    if (!upload.ok()) return upload.status();
    for (const auto& [file, content] : files) {
      absl::Status status = (*upload)->StartFile(file);
      if (status.ok()) status = (*upload)->Append(content);
      if (!status.ok()) return status;
    }
    return (*upload)->Commit().status();
  }
  std::string Content(const std::string& name, const std::string& file) {
    auto folder = artifacts_->Folder(name);
    if (!folder.ok()) return std::string(folder.status().message());
    return ContentOf(*folder + "/" + file);
  }
  static std::string ContentOf(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }
  size_t Leftovers() const {
    size_t count = 0;
    for (const char* folder : {"/incoming", "/data"}) {
      for (auto& entry : fs::directory_iterator(root_ + folder)) {
        (void)entry;
        ++count;
      }
    }
    return count;
  }

  std::string root_;
  FakeClock clock_;
  FaultyFileSystem files_{NewPosixFileSystem()};
  std::unique_ptr<SqliteStore> store_;
  std::unique_ptr<ArtifactStore> artifacts_;
};

TEST_F(ArtifactsTest, CommitsSurviveReopening) {
  ASSERT_TRUE(Put("a", {{"x.txt", "hello"}, {"sub/y", "world"}}).ok());
  Reopen();
  EXPECT_EQ(Content("a", "sub/y"), "world");
  auto artifact = artifacts_->Find("a");
  ASSERT_TRUE(artifact.ok());
  EXPECT_EQ(artifact->bytes(), 10);
  EXPECT_EQ(artifact->sha256(),
            Sha256Hex("sub/y " + Sha256Hex("world") + "\nx.txt " + Sha256Hex("hello") + "\n"));
  EXPECT_FALSE(artifacts_->SingleFile("a").ok());
  ASSERT_TRUE(Put("b", {{"one", "1"}}).ok());
  EXPECT_TRUE(artifacts_->SingleFile("b").ok());
  EXPECT_EQ(artifacts_->Find("b")->sha256(), Sha256Hex("1"));
}

TEST_F(ArtifactsTest, NamesOutsideFolderAreRefused) {
  for (const char* name :
       {"", "..", ".hidden", "/a", "a/", "a//b", "a/../b", "a/.b", "a\\b", "a b", "a\n", "ü"}) {
    EXPECT_EQ(Put(name, {{"f", "x"}}).code(), absl::StatusCode::kInvalidArgument) << name;
  }
  EXPECT_FALSE(Put(std::string(129, 'a'), {{"f", "x"}}).ok());
  for (const char* file :
       {"", "/etc/passwd", "../x", "a/../../x", "a//b", "./x", "a/.", "a\\..\\b", "a\x01"}) {
    EXPECT_EQ(Put("good", {{file, "x"}}).code(), absl::StatusCode::kInvalidArgument) << file;
  }
  EXPECT_EQ(Put("good", {{std::string("a\0b", 3), "x"}}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Leftovers(), 0u);
}

// Hugging Face's names, "organization/model".
TEST_F(ArtifactsTest, NamesMayHaveSlashes) {
  ASSERT_TRUE(Put("org/model", {{"f", "1"}}).ok());
  ASSERT_TRUE(Put("org", {{"f", "2"}}).ok());
  ASSERT_TRUE(Put("org/model/x", {{"f", "3"}}).ok());
  ASSERT_TRUE(Put("org/model", {{"f", "4"}}, true).ok());
  Reopen();
  EXPECT_EQ(Content("org/model", "f"), "4");
  EXPECT_EQ(Content("org", "f"), "2");
  EXPECT_EQ(Content("org/model/x", "f"), "3");
  ASSERT_TRUE(artifacts_->Delete("org/model", nullptr).ok());
  EXPECT_EQ(Content("org/model/x", "f"), "3");
  EXPECT_EQ(Leftovers(), 2u);
}

TEST_F(ArtifactsTest, LimitsAreKept) {
  EXPECT_EQ(Put("a", {{"1", ""}, {"2", ""}, {"3", ""}, {"4", ""}}).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Put("a", {{"f", std::string(601, 'x')}}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Put("a", {{"f", std::string(600, 'x')}, {"g", std::string(401, 'x')}}).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(artifacts_->Begin({"a", v1::Artifact::DATASET, {}, ""}, false)
                .value()
                ->Commit()
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument)
      << "no file at all";
  EXPECT_EQ(Leftovers(), 0u);
}

TEST_F(ArtifactsTest, FullDiskKeepsExistingArtifacts) {
  ASSERT_TRUE(Put("a", {{"f", "old"}}).ok());
  for (int64_t free : {0, 3, 99}) {
    files_.set_free_bytes(free);
    EXPECT_EQ(Put("a", {{"f", std::string(100, 'n')}}, true).code(),
              absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(Content("a", "f"), "old");
  }
  files_.set_free_bytes(1 << 20);
  EXPECT_EQ(Leftovers(), 1u);
  EXPECT_TRUE(Put("a", {{"f", "new"}}, true).ok());
  EXPECT_EQ(Content("a", "f"), "new");
}

TEST_F(ArtifactsTest, ReplacingMustBeAskedForAndDeletingRemovesTheFiles) {
  ASSERT_TRUE(Put("a", {{"f", "1"}}).ok());
  EXPECT_EQ(Put("a", {{"f", "2"}}).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Content("a", "f"), "1");
  ASSERT_TRUE(Put("a", {{"f", "2"}}, true).ok());
  EXPECT_EQ(Content("a", "f"), "2");
  EXPECT_EQ(Leftovers(), 1u);
  ASSERT_TRUE(artifacts_->Delete("a", nullptr).ok());
  EXPECT_EQ(artifacts_->Find("a").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Leftovers(), 0u);
}

TEST_F(ArtifactsTest, PinnedFilesStayUntilLastReference) {
  ASSERT_TRUE(Put("a", {{"f", "1"}}).ok());
  std::optional<ArtifactFolder> first = artifacts_->Pin("a").value(), again = first;
  ASSERT_TRUE(Put("a", {{"f", "2"}}, true).ok());
  std::optional<ArtifactFolder> second = artifacts_->Pin("a").value();
  ASSERT_TRUE(artifacts_->Delete("a", nullptr).ok());
  EXPECT_TRUE(absl::IsNotFound(artifacts_->Pin("a").status()));
  EXPECT_EQ(ContentOf(first->path() + "/f"), "1");
  EXPECT_EQ(ContentOf(second->path() + "/f"), "2");
  EXPECT_EQ(Leftovers(), 2u);
  first.reset();
  EXPECT_EQ(Leftovers(), 2u);
  again.reset();
  EXPECT_EQ(Leftovers(), 1u);
  artifacts_.reset();
  second.reset();
  EXPECT_EQ(Leftovers(), 0u);
}

TEST_F(ArtifactsTest, CurrentArtifactStaysAfterUnpin) {
  ASSERT_TRUE(Put("a", {{"f", "1"}}).ok());
  artifacts_->Pin("a").IgnoreError();
  EXPECT_EQ(Content("a", "f"), "1");
}

TEST_F(ArtifactsTest, DeletedPinnedFilesAreRemovedAtNextStart) {
  ASSERT_TRUE(Put("a", {{"f", "1"}}).ok());
  const std::optional<ArtifactFolder> held = artifacts_->Pin("a").value();
  ASSERT_TRUE(Put("a", {{"f", "2"}}, true).ok());
  Reopen();
  EXPECT_EQ(Content("a", "f"), "2");
  EXPECT_EQ(Leftovers(), 1u);
}

TEST_F(ArtifactsTest, WrongHashIsDataLossAndUnfinishedUploadIsDropped) {
  {
    auto upload = artifacts_->Begin({"a", v1::Artifact::DATASET, {}, ""}, false);
    ASSERT_TRUE((*upload)->StartFile("f").ok());
    ASSERT_TRUE((*upload)->Append("hello").ok());
    EXPECT_EQ((*upload)->CheckSha256(Sha256Hex("other")).code(), absl::StatusCode::kDataLoss);
  }
  EXPECT_EQ(Leftovers(), 0u);
  fs::create_directories(root_ + "/incoming/7");
  Reopen();
  EXPECT_EQ(Leftovers(), 0u);
}

// The job store's errors advise to move it away or to restore a backup.
TEST_F(ArtifactsTest, ArtifactsUnknownToJobStoreAreMovedAsideAndBack) {
  ASSERT_TRUE(Put("a", {{"f", "1"}, {"sub/g", "2"}}).ok());
  ASSERT_TRUE(Put("b", {{"f", "3"}}).ok());
  const auto move_store = [&](const std::string& from, const std::string& to) {
    artifacts_.reset();
    store_.reset();
    for (const char* end : {"", "-wal", "-shm"}) {
      fs::remove(root_ + to + end);
      if (fs::exists(root_ + from + end)) fs::rename(root_ + from + end, root_ + to + end);
    }
    Reopen();
  };
  const auto folder_of = [&](const std::string& name) {
    return fs::path(artifacts_->Folder(name).value()).filename().string();
  };
  const std::string a = folder_of("a"), b = folder_of("b");
  move_store("/db", "/backup");
  EXPECT_THAT(artifacts_->List(), ::testing::IsEmpty());
  EXPECT_EQ(ContentOf(root_ + "/orphaned/" + a + "/sub/g"), "2");
  EXPECT_EQ(ContentOf(root_ + "/orphaned/" + b + "/f"), "3");
  ASSERT_TRUE(Put("a", {{"f", "new"}}).ok());
  const std::string later = folder_of("a");
  EXPECT_FALSE(fs::exists(root_ + "/orphaned/" + later)) << "no orphan's name is given again";
  move_store("/backup", "/db");
  EXPECT_EQ(Content("a", "f"), "1");
  EXPECT_EQ(Content("a", "sub/g"), "2");
  EXPECT_EQ(Content("b", "f"), "3");
  EXPECT_EQ(ContentOf(root_ + "/orphaned/" + later + "/f"), "new");
}

TEST_F(ArtifactsTest, AdoptRegistersAStagedFolder) {
  auto staging = artifacts_->MakeStagingFolder();
  ASSERT_TRUE(staging.ok());
  std::ofstream(*staging + "/model.safetensors") << "weights";
  auto artifact =
      artifacts_->RegisterStaged(*staging, {"m", v1::Artifact::MODEL, {{"family", "llama"}}, ""});
  ASSERT_TRUE(artifact.ok()) << artifact.status();
  Reopen();
  EXPECT_EQ(Content("m", "model.safetensors"), "weights");
  EXPECT_EQ(artifacts_->Find("m")->metadata().at("family"), "llama");
  EXPECT_EQ(artifacts_->Find("m")->sha256(), Sha256Hex("weights"));
}

class VersionsTest : public ArtifactsTest {
 protected:
  // Returns the name under which a job's model is registered.
  std::string Train(const std::string& name, const std::string& job, const std::string& weights) {
    auto staging = artifacts_->MakeStagingFolder();
    EXPECT_TRUE(staging.ok());
    std::ofstream(*staging + "/w") << weights;
    auto artifact = artifacts_->RegisterStaged(
        *staging, {name, v1::Artifact::MODEL, {{"job", job}}, ""}, IfExists::kAddVersion);
    EXPECT_TRUE(artifact.ok()) << artifact.status();
    return artifact.ok() ? artifact->name() : "";
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const v1::Artifact& artifact : artifacts_->List()) names.push_back(artifact.name());
    return names;
  }
};

TEST_F(VersionsTest, ASecondJobsModelLeavesTheFirst) {
  EXPECT_EQ(Train("m", "job-1", "one"), "m");
  EXPECT_EQ(Names(), (std::vector<std::string>{"m"}));
  EXPECT_EQ(Train("m", "job-2", "two"), "m@2");
  for (int i = 0; i < 2; ++i, Reopen()) {
    EXPECT_EQ(Names(), (std::vector<std::string>{"m@1", "m@2"}));
    EXPECT_EQ(Content("m", "w"), "two") << "the newest";
    EXPECT_EQ(Content("m@2", "w"), "two");
    EXPECT_EQ(Content("m@1", "w"), "one");
    EXPECT_EQ(artifacts_->Find("m")->name(), "m@2");
    EXPECT_EQ(artifacts_->Find("m@3").status().code(), absl::StatusCode::kNotFound);
  }
}

// A job that was interrupted after its model was registered registers it again.
TEST_F(VersionsTest, TheSameJobReplacesItsOwn) {
  EXPECT_EQ(Train("m", "job-1", "one"), "m");
  EXPECT_EQ(Train("m", "job-2", "two"), "m@2");
  EXPECT_EQ(Train("m", "job-1", "one again"), "m");
  EXPECT_EQ(Content("m@1", "w"), "one again");
  EXPECT_EQ(Content("m", "w"), "two");
}

TEST_F(VersionsTest, NumbersAreNotUsedTwice) {
  Train("m", "job-1", "one");
  Train("m", "job-2", "two");
  ASSERT_TRUE(artifacts_->Delete("m@2", nullptr).ok());
  EXPECT_EQ(Content("m", "w"), "one");
  Reopen();
  EXPECT_EQ(Train("m", "job-3", "three"), "m@3");
  ASSERT_TRUE(artifacts_->Delete("m@1", nullptr).ok());
  EXPECT_EQ(Names(), (std::vector<std::string>{"m@3"}));
  EXPECT_EQ(Content("m", "w"), "three");
}

TEST_F(VersionsTest, OneOfSeveralIsDeletedByItsNumber) {
  Train("m", "job-1", "one");
  Train("m", "job-2", "two");
  const absl::Status refused = artifacts_->Delete("m", nullptr);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), testing::HasSubstr("m@1, m@2"));
  EXPECT_EQ(Names().size(), 2u);
}

TEST_F(VersionsTest, ARecordsReferenceIsNotChangedByLaterVersions) {
  Train("m", "job-1", "one");
  const absl::StatusOr<std::string> pinned = artifacts_->Pinned("m");
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  Train("m", "job-2", "two");
  EXPECT_EQ(Content(*pinned, "w"), "one");
  EXPECT_EQ(*artifacts_->Pinned("m"), "m@2");
  ASSERT_TRUE(Put("data", {{"f", "x"}}).ok());
  EXPECT_EQ(*artifacts_->Pinned("data"), "data") << "no job makes versions of it";
}

TEST_F(VersionsTest, WhatIsNeededIsNeitherDeletedNorReplaced) {
  std::string used = "m@1";
  artifacts_->AddUser([&used] {
    return std::vector<ArtifactUse>{{used, "job job-9", "cancel it"}};
  });
  Train("m", "job-1", "one");
  ASSERT_TRUE(Put("data", {{"f", "x"}}).ok());
  const absl::Status refused = artifacts_->Delete("m", nullptr);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), testing::HasSubstr("needed by job job-9; cancel it"));
  EXPECT_EQ(Put("m", {{"w", "other"}}, /*replace=*/true).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Content("m", "w"), "one");
  EXPECT_EQ(Train("m", "job-2", "two"), "m@2") << "another version takes nothing away";
  EXPECT_TRUE(artifacts_->Delete("m@2", nullptr).ok());
  EXPECT_TRUE(Put("data", {{"f", "y"}}, /*replace=*/true).ok());
  used = "data";
  EXPECT_FALSE(artifacts_->Delete("data", nullptr).ok());
  EXPECT_TRUE(artifacts_->Delete("m", nullptr).ok());
}

TEST_F(VersionsTest, WhatReplaysNeedIsTakenAwayOnlyByForceAndNamesTheirRuns) {
  std::vector<ArtifactUse> uses;
  for (int version = 1; version <= 7; ++version) {
    ArtifactUse& use = uses.emplace_back();
    use.artifact = "data";
    use.user = absl::StrCat("lm@", version, " (job-", version, ")");
    use.replays = true;
    use.owner = version == 7 ? "bob" : "alice";
  }
  artifacts_->AddUser([&] { return uses; });
  ASSERT_TRUE(Put("data", {{"f", "x"}}).ok());
  ASSERT_TRUE(Put("other", {{"f", "x"}}).ok());
  EXPECT_TRUE(Put("data", {{"f", "x"}}, /*replace=*/true).ok()) << "the same content";
  EXPECT_FALSE(Put("data", {{"g", "x"}}, /*replace=*/true).ok()) << "another file name";
  const absl::Status kept = Put("data", {{"f", "y"}}, /*replace=*/true, {false, nullptr});
  EXPECT_EQ(kept.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(kept.message(), testing::AllOf(testing::HasSubstr("needed to replay lm@1 (job-1)"),
                                             testing::HasSubstr("--force beside --replace")));
  EXPECT_EQ(Content("data", "f"), "x");
  EXPECT_TRUE(Put("other", {{"f", "y"}}, /*replace=*/true).ok());
  EXPECT_TRUE(Put("data", {{"f", "y"}}, /*replace=*/true, {true, nullptr}).ok());
  EXPECT_EQ(Content("data", "f"), "y");
  EXPECT_TRUE(artifacts_->Delete("other", nullptr).ok());
  const auto refusal = [&](const std::string& owner) {
    const absl::Status refused = artifacts_->Delete(
        "data", nullptr, {false, [&](const std::string& of) { return of == owner; }});
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    return std::string(refused.message());
  };
  EXPECT_THAT(
      refusal("alice"),
      testing::AllOf(testing::HasSubstr("needed to replay lm@1 (job-1), lm@2 (job-2), "),
                     testing::HasSubstr("lm@5 (job-5) and 2 more recorded runs; delete"),
                     testing::HasSubstr("--force data"), testing::Not(testing::HasSubstr("lm@7"))));
  EXPECT_THAT(refusal("bob"),
              testing::HasSubstr("to replay lm@7 (job-7) and 6 more recorded runs"));
  EXPECT_THAT(refusal("carol"), testing::HasSubstr("needed to replay 7 recorded runs; "));
  uses.push_back({"data", "job-9, which is not over", "wait for it"});
  EXPECT_FALSE(Put("data", {{"f", "x"}}, /*replace=*/true, {true, nullptr}).ok());
  const absl::Status refused = artifacts_->Delete("data", nullptr, {true, nullptr});
  EXPECT_THAT(refused.message(), testing::HasSubstr("job-9")) << "that needs it now";
  uses.pop_back();
  EXPECT_TRUE(artifacts_->Delete("data", nullptr, {true, nullptr}).ok());
}

TEST_F(VersionsTest, BadVersionsAreRefused) {
  for (const char* name : {"m@", "m@0", "m@-1", "m@01", "m@x", "@1", "m@1@2", "m@1 "}) {
    EXPECT_EQ(artifacts_->Find(name).status().code(), absl::StatusCode::kInvalidArgument) << name;
  }
  EXPECT_EQ(Put("m@2", {{"f", "x"}}).code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace espalier
