// The coordinator's store as a worker sees it: over gRPC, with broken connections, and with a
// cache.
#include "worker/storage/coordinator_store.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "storage/checkpoint_store_contract.h"
#include "storage/folder_checkpoint_store.h"
#include "tests/storage/storage_server.h"
#include "worker/storage/host_cache.h"

namespace espalier {
namespace {

constexpr char kJob[] = "job-1";  // of StorageServer
constexpr char kArtifact[] = "artifacts/data/lm@1";

// What the worker may not do, the coordinator does on its disk.
class BothSides : public CheckpointStore {
 public:
  BothSides(std::unique_ptr<CoordinatorStore> worker, FolderCheckpointStore* coordinator)
      : worker_(std::move(worker)), coordinator_(*coordinator) {}
  absl::StatusOr<std::unique_ptr<Upload>> Put(const std::string& name) override {
    return worker_->Put(name);
  }
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& name) override {
    return worker_->Open(name);
  }
  absl::StatusOr<std::vector<Object>> List(const std::string& folder) override {
    return worker_->List(folder);
  }
  absl::Status PutIfAbsent(const std::string& name, const std::string& content) override {
    return coordinator_.PutIfAbsent(name, content);
  }
  absl::Status DeleteExcept(const std::string& name,
                            const std::vector<std::string>& keep) override {
    return coordinator_.DeleteExcept(name, keep);
  }

 private:
  const std::unique_ptr<CoordinatorStore> worker_;
  FolderCheckpointStore& coordinator_;
};

class TestedCoordinator : public TestedStore {
 public:
  CheckpointStore& store() override { return store_; }

 private:
  StorageServer coordinator_;
  const std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  FolderCheckpointStore of_job_{
      *files_, absl::StrCat(coordinator_.data_folder().root(), "/checkpoints/", kJob)};
  BothSides store_{coordinator_.Store(absl::StrCat("checkpoints/", kJob)), &of_job_};
};

INSTANTIATE_TEST_SUITE_P(Coordinator, CheckpointStoreContract,
                         testing::Values([]() -> std::unique_ptr<TestedStore> {
                           return std::make_unique<TestedCoordinator>();
                         }));

std::string Pattern(int64_t bytes) {
  std::string pattern(static_cast<size_t>(bytes), '\0');
  uint32_t state = 1;
  for (char& c : pattern) c = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  return pattern;
}

absl::Status Upload(CheckpointStore& store, const std::string& name, const std::string& content) {
  auto upload = store.Put(name);
  if (!upload.ok()) return upload.status();
  for (size_t at = 0; at < content.size(); at += 100'000) {
    const std::string part = content.substr(at, 100'000);
    const absl::Status status = (*upload)->Append(part.data(), static_cast<int64_t>(part.size()));
    if (!status.ok()) return status;
  }
  return (*upload)->Commit();
}

TEST(CoordinatorStore, ShardsArriveWholeThoughConnectionsBreak) {
  StorageServer coordinator;
  const auto owned = coordinator.Store("checkpoints");
  CoordinatorStore& store = *owned;
  const std::string content = Pattern(64 << 20);
  const std::string name = absl::StrCat(kJob, "/attempt-1/step-1/rank-0.safetensors");
  std::atomic<bool> over = false;
  std::thread upload([&] {
    const absl::Status status = Upload(store, name, content);
    EXPECT_TRUE(status.ok()) << status;
    over = true;
  });
  int breaks = 0;
  while (!over && breaks < 8) {
    absl::SleepFor(absl::Milliseconds(10));
    coordinator.Break();
    ++breaks;
  }
  upload.join();
  EXPECT_GT(breaks, 1);
  EXPECT_TRUE(*ReadObject(coordinator.data_folder(), "checkpoints/" + name, 1 << 30) == content);

  over = false;
  std::thread download([&] {
    const auto read = ReadObject(store, name, 1 << 30);
    EXPECT_TRUE(read.ok()) << read.status();
    EXPECT_TRUE(read.ok() && *read == content);
    over = true;
  });
  for (breaks = 0; !over && breaks < 8; ++breaks) {
    absl::SleepFor(absl::Milliseconds(10));
    coordinator.Break();
  }
  download.join();
}

TEST(CoordinatorStore, ACoordinatorThatIsGoneIsAnErrorInTime) {
  StorageServer coordinator;
  StorageClientOptions options = coordinator.ClientOptions();
  options.patience = absl::Milliseconds(500);
  CoordinatorStore store(std::make_shared<StorageClient>(options), "checkpoints", nullptr);
  auto upload = store.Put(absl::StrCat(kJob, "/a/b"));
  ASSERT_TRUE(upload.ok()) << upload.status();
  coordinator.Shutdown();
  const absl::Time begin = absl::Now();
  const absl::Status status = (*upload)->Commit();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_NE(status.message().find("job-1/a/b"), std::string::npos) << status;
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
  coordinator.Break();
}

// A stopped attempt must not hold its worker until the patience is over.
TEST(CoordinatorStore, CancellationEndsWaiting) {
  StorageServer coordinator;
  StorageClientOptions options = coordinator.ClientOptions();
  options.cancellation = std::make_shared<Cancellation>();
  CoordinatorStore store(std::make_shared<StorageClient>(options), "checkpoints", nullptr);
  auto upload = store.Put(absl::StrCat(kJob, "/a/b"));
  ASSERT_TRUE(upload.ok()) << upload.status();
  coordinator.Shutdown();
  options.cancellation->Cancel();
  const absl::Time begin = absl::Now();
  EXPECT_FALSE((*upload)->Commit().ok());
  EXPECT_FALSE(store.Open(absl::StrCat(kJob, "/a/b")).ok());
  EXPECT_LT(absl::Now() - begin, options.patience / 2);
  coordinator.Break();
}

// Nor until others have had their turns, or the coordinator's disk answers.
TEST(CoordinatorStore, CancellationEndsACallThatTheCoordinatorDoesNotAnswer) {
  StorageServer coordinator;
  const std::unique_ptr<CoordinatorStore> others = coordinator.Store("checkpoints");
  std::vector<std::unique_ptr<CheckpointStore::Upload>> turns;
  for (int i = 0; i < StorageServiceOptions().max_streams; ++i) {
    auto upload = others->Put(absl::StrCat(kJob, "/a/", i));
    ASSERT_TRUE(upload.ok()) << upload.status();
    turns.push_back(*std::move(upload));
  }
  StorageClientOptions options = coordinator.ClientOptions();
  options.cancellation = std::make_shared<Cancellation>();
  CoordinatorStore store(std::make_shared<StorageClient>(options), "checkpoints", nullptr);
  const absl::Time begin = absl::Now();
  std::thread cancels([&] {
    absl::SleepFor(absl::Milliseconds(200));
    options.cancellation->Cancel();
  });
  EXPECT_FALSE(store.Put(absl::StrCat(kJob, "/a/waits")).ok());
  cancels.join();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
  EXPECT_FALSE(store.Put(absl::StrCat(kJob, "/a/late")).ok());
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
}

TEST(CoordinatorStore, OnlyTheCurrentAttemptReachesOnlyItsFiles) {
  StorageServer coordinator;
  FolderCheckpointStore& data = coordinator.data_folder();
  for (const char* name :
       {"espalier.db", "checkpoints/job-1/values-1/manifest.json", "checkpoints/job-12/a/b",
        "artifacts/data/lm@1/config.json", "artifacts/incoming/1/x"}) {
    ASSERT_TRUE(data.PutIfAbsent(name, "content").ok());
  }
  const auto owned = coordinator.Store("");
  CoordinatorStore& store = *owned;
  const auto code = [&](const std::string& name) { return store.Open(name).status().code(); };
  EXPECT_EQ(code("checkpoints/job-1/values-1/manifest.json"), absl::StatusCode::kOk);
  EXPECT_EQ(code("artifacts/data/lm@1/config.json"), absl::StatusCode::kOk);
  const auto denied = absl::StatusCode::kPermissionDenied;
  for (const char* name : {"checkpoints/job-12/a/b", "artifacts/incoming/1/x", "checkpoints/x"}) {
    EXPECT_EQ(code(name), denied) << name;
  }
  EXPECT_FALSE(store.Open("espalier.db").ok());
  for (const char* name : {"checkpoints/job-12/a", "artifacts/data/lm@1/new", "espalier.db"}) {
    EXPECT_EQ(store.Put(name).status().code(), denied) << name;
  }
  EXPECT_EQ(store.PutIfAbsent("checkpoints/job-1/a", "x").code(), denied);
  EXPECT_EQ(store.Delete("checkpoints/job-1").code(), denied);

  // An upload that has begun ends with its attempt: a later one writes elsewhere.
  auto upload = store.Put("checkpoints/job-1/attempt-1/step-1/rank-0.safetensors");
  ASSERT_TRUE(upload.ok()) << upload.status();
  ASSERT_TRUE((*upload)->Append("abc", 3).ok());
  coordinator.rendezvous().Begin(kJob, 2);
  EXPECT_EQ((*upload)->Commit().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code("checkpoints/job-1/values-1/manifest.json"),
            absl::StatusCode::kFailedPrecondition);
  coordinator.rendezvous().Begin(kJob, 1);
  EXPECT_EQ(code("artifacts/data/lm@1/config.json"), absl::StatusCode::kOk);
  // Nor does another worker than those of the job.
  coordinator.workers().Release(kJob);
  EXPECT_EQ(code("checkpoints/job-1/values-1/manifest.json"),
            absl::StatusCode::kFailedPrecondition);
  coordinator.Assign();
  EXPECT_EQ(code("artifacts/data/lm@1/config.json"), absl::StatusCode::kOk);
  ASSERT_TRUE(coordinator.workers().Leave(coordinator.lease()).ok());
  EXPECT_EQ(code("artifacts/data/lm@1/config.json"), absl::StatusCode::kFailedPrecondition);
}

class CachedArtifact : public testing::Test {
 protected:
  CachedArtifact() {
    std::filesystem::remove_all(folder_);
    auto cache = HostCache::Open(folder_, int64_t{1} << 30);
    EXPECT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
    EXPECT_TRUE(Upload(coordinator_.data_folder(), Name(), content_).ok());
  }
  static std::string Name() { return absl::StrCat(kArtifact, "/model.safetensors"); }

  // Returns bytes [offset, offset + bytes) as a store of a new attempt reads them.
  std::string Read(int64_t offset, int64_t bytes) {
    const auto store = coordinator_.Store("", cache_.get());
    auto file = store->Open(Name());
    EXPECT_TRUE(file.ok()) << file.status();
    std::string read(static_cast<size_t>(bytes), '\0');
    const absl::Status status = (*file)->Read(offset, bytes, read.data());
    EXPECT_TRUE(status.ok()) << status;
    return read;
  }
  int64_t BytesInCache() const {
    int64_t bytes = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
      if (entry.is_regular_file()) bytes += static_cast<int64_t>(entry.file_size());
    }
    return bytes;
  }

  const std::string folder_ = testing::TempDir() + "/coordinator-store-cache";
  const std::string content_ = Pattern((20 << 20) + 5);
  StorageServer coordinator_;
  std::unique_ptr<HostCache> cache_;
};

TEST_F(CachedArtifact, OnlyTheBlocksThatAreReadCross) {
  EXPECT_EQ(Read(17 << 20, 1000), content_.substr(17 << 20, 1000));
  EXPECT_EQ(BytesInCache(), (4 << 20) + 5) << "the last block";
  EXPECT_TRUE(Read(0, static_cast<int64_t>(content_.size())) == content_);
  EXPECT_EQ(BytesInCache(), (20 << 20) + 5);
}

// A model that is served again is not sent again: here nothing of it is left to send.
TEST_F(CachedArtifact, WhatIsCachedNeedsNoCoordinator) {
  EXPECT_TRUE(Read(0, static_cast<int64_t>(content_.size())) == content_);
  const std::string path = coordinator_.data_folder().root() + "/" + Name();
  std::ofstream(path) << std::string(content_.size(), '!');
  EXPECT_TRUE(Read(0, static_cast<int64_t>(content_.size())) == content_);
}

TEST_F(CachedArtifact, WhatDoesNotHaveItsHashIsRefused) {
  Read(0, 1);  // hashes are known
  const std::string path = coordinator_.data_folder().root() + "/" + Name();
  std::fstream(path, std::ios::in | std::ios::out).seekp(9 << 20).put('!');
  const auto store = coordinator_.Store("", cache_.get());
  auto file = store->Open(Name());
  ASSERT_TRUE(file.ok()) << file.status();
  char byte = 0;
  EXPECT_EQ((*file)->Read(9 << 20, 1, &byte).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace espalier
