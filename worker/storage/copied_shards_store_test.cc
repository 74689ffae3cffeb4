// Copies of shards on this host and on another: they are read first, and nothing depends on them.
#include "worker/storage/copied_shards_store.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/file_system.h"
#include "base/sha256.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/checkpoint.h"
#include "storage/checkpoint_store_contract.h"
#include "storage/folder_checkpoint_store.h"
#include "storage/shard_key.h"
#include "worker/storage/shard_server.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr char kJob[] = "job-1";
constexpr int64_t kElements = 3 << 20;  // a shard is read in several messages

fs::path FolderOfTest() {
  const auto* const info = ::testing::UnitTest::GetInstance()->current_test_info();
  std::string name = absl::StrCat(info->test_suite_name(), ".", info->name());
  std::replace(name.begin(), name.end(), '/', '-');
  return fs::path(::testing::TempDir()) / "copied_shards_store" / name;
}

// A host with a worker.
class Host {
 public:
  explicit Host(const std::string& name, int64_t cache_bytes = int64_t{1} << 30,
                bool encrypted = true)
      : call_key_(absl::StrCat("the call key of ", name)),
        cache_(*HostCache::Open(FolderOfTest() / name, cache_bytes)),
        copies_(cache_.get()) {
    ShardServerOptions options;
    options.listen_host = "127.0.0.1";
    options.encrypted = encrypted;
    options.call_key = call_key_;
    options.copies = &copies_;
    server_ = *ShardServer::Start(options);
    port_ = server_->port();
  }

  v1::ShardPeer peer(const std::string& job = kJob) const {
    v1::ShardPeer peer;
    peer.set_address(absl::StrCat("127.0.0.1:", port_));
    peer.set_key(ShardKey(call_key_, job));
    if (server_ != nullptr) peer.set_certificate(server_->certificate());
    return peer;
  }
  ShardCopies& copies() { return copies_; }
  HostCache& cache() { return *cache_; }
  void Die() { server_.reset(); }
  // Files in its cache.
  std::vector<fs::path> Files() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(cache_->path())) files.push_back(entry.path());
    return files;
  }

 private:
  const std::string call_key_;
  const std::unique_ptr<HostCache> cache_;
  ShardCopies copies_;
  std::unique_ptr<ShardServer> server_;
  int port_ = 0;
};

class Numbers : public CheckpointSource {
 public:
  explicit Numbers(float first) : first_(first) {}
  absl::Status Read(int, std::vector<char>* bytes) override {
    std::vector<float> numbers(kElements);
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = first_ + static_cast<float>(i);
    std::memcpy(bytes->data(), numbers.data(), bytes->size());
    return absl::OkStatus();
  }

 private:
  const float first_;
};

// A rank's half of a tensor of two ranks.
CheckpointEntry Half(int rank) {
  CheckpointEntry entry;
  entry.name = "w";
  entry.spec.dtype = DType::kF32;
  entry.spec.global = {2 * kElements};
  entry.spec.offset = {rank * kElements};
  entry.spec.dims = {kElements};
  return entry;
}

class CopiedShardsStoreTest : public ::testing::Test {
 protected:
  CopiedShardsStoreTest() {
    fs::remove_all(FolderOfTest());
    fs::create_directories(FolderOfTest());
  }
  ~CopiedShardsStoreTest() override { fs::remove_all(FolderOfTest()); }

  std::shared_ptr<FolderCheckpointStore> Folder() {
    return std::make_shared<FolderCheckpointStore>(*files_, FolderOfTest() / "store");
  }
  std::unique_ptr<CopiedShardsStore> StoreOn(Host& host, const ShardPlaces& places = {}) {
    return std::make_unique<CopiedShardsStore>(Folder(), kJob, &host.copies(), places);
  }

  // Two ranks write a checkpoint through their stores.
  static absl::Status Write(CopiedShardsStore& first, CopiedShardsStore& second, int step,
                            CheckpointStore& store) {
    Manifest manifest;
    manifest.job_id = kJob;
    manifest.steps_done = step;
    const std::string folder = FolderAt(step);
    int rank = 0;
    for (CopiedShardsStore* const written : {&first, &second}) {
      Numbers numbers(static_cast<float>(step));
      absl::StatusOr<ManifestFile> file =
          WriteCheckpointShard(*written, folder, rank, {Half(rank)}, numbers);
      if (!file.ok()) return file.status();
      manifest.files.push_back(*file);
      ++rank;
    }
    return WriteManifest(store, folder, manifest);
  }
  static std::string FolderAt(int step) { return absl::StrCat(kJob, "/attempt-1/step-", step); }

  // The first element of a rank's half, after all was verified.
  static absl::StatusOr<float> Read(CheckpointStore& store, int step, int rank) {
    auto reader = CheckpointReader::Open(store, FolderAt(step));
    if (!reader.ok()) return reader.status();
    std::vector<float> numbers(kElements);
    absl::Status s = (*reader)->Read("w", Half(rank).spec, numbers.data());
    if (s.ok()) s = (*reader)->Verify();
    if (!s.ok()) return s;
    return numbers[0];
  }

  // Spoils the original of a rank's shard, so that reading it is noticed.
  static void SpoilOriginal(int step, int rank) {
    Spoil(FolderOfTest() / "store" / FolderAt(step) / absl::StrCat("rank-", rank, ".safetensors"));
  }
  static void Spoil(const fs::path& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    ASSERT_TRUE(file.good()) << path;
    file.seekp(-4, std::ios::end);
    file << "spoi";
  }
  static bool Eventually(const std::function<bool()>& condition) {
    for (int i = 0; i < 500; ++i) {
      if (condition()) return true;
      absl::SleepFor(absl::Milliseconds(20));
    }
    return false;
  }
  static int64_t Complete(const Host& host) {
    const std::vector<fs::path> files = host.Files();
    return std::count_if(files.begin(), files.end(),
                         [](const fs::path& file) { return file.extension() != ".tmp"; });
  }

  const std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
};

TEST_F(CopiedShardsStoreTest, ARankReadsItsOwnDiskFirst) {
  Host a("a"), b("b");
  const auto first = StoreOn(a), second = StoreOn(b);
  ASSERT_EQ(Write(*first, *second, 5, *Folder()), absl::OkStatus());
  SpoilOriginal(5, 0);
  const auto again = StoreOn(a);
  EXPECT_EQ(Read(*again, 5, 0).value_or(-1), 5);
  EXPECT_GT(again->sources().own_disk(), kElements * 4);
  EXPECT_EQ(again->sources().peers(), 0);
  // The other rank's is not on this disk.
  EXPECT_EQ(Read(*again, 5, 1).value_or(-1), 5);
  EXPECT_GT(again->sources().store(), kElements * 4);
}

TEST_F(CopiedShardsStoreTest, AHostThatLostItsDiskReadsAnothersCopy) {
  for (const bool encrypted : {true, false}) {
    Host a(absl::StrCat("a", encrypted)), b(absl::StrCat("b", encrypted), 1 << 30, encrypted),
        fresh(absl::StrCat("fresh", encrypted));
    const int step = encrypted ? 5 : 6;
    const auto first = StoreOn(a, {b.peer(), {}}), second = StoreOn(b, {a.peer(), {}});
    ASSERT_EQ(Write(*first, *second, step, *Folder()), absl::OkStatus());
    ASSERT_TRUE(Eventually([&] { return Complete(b) == 2; })) << "the copy was sent";
    SpoilOriginal(step, 0);
    const auto again = StoreOn(fresh, {std::nullopt, {b.peer()}});
    EXPECT_EQ(Read(*again, step, 0).value_or(-1), step);
    EXPECT_GT(again->sources().peers(), kElements * 4);
    EXPECT_EQ(again->sources().own_disk(), 0);
    EXPECT_EQ(again->sources().store(), 0);
  }
}

// They are written right before a shard, and only once.
TEST_F(CopiedShardsStoreTest, WhatCheckpointsShareHasCopiesLikeTheirShards) {
  Host a("a"), b("b"), fresh("fresh");
  const auto writing = StoreOn(a, {b.peer(), {}});
  CheckpointEntry entry = Half(0);
  entry.spec.global = {kElements};
  std::string shared;
  for (const int step : {5, 6, 7, 8}) {
    Numbers frozen(77), numbers(static_cast<float>(step));
    Manifest manifest;
    manifest.steps_done = step;
    if (step == 5) {
      entry.name = "frozen";
      const auto file = WriteUnchangedShard(*writing, FolderAt(step), 0, {entry}, frozen);
      ASSERT_TRUE(file.ok()) << file.status();
      shared = file->sha256;
    }
    entry.name = "w";
    const auto file = WriteCheckpointShard(*writing, FolderAt(step), 0, {entry}, numbers);
    ASSERT_TRUE(file.ok()) << file.status();
    ManifestFile unchanged = {"unchanged-rank-0.safetensors", shared, 0, true};
    unchanged.bytes = a.cache().OpenFile(shared)->size();
    manifest.files = {*file, unchanged};
    ASSERT_EQ(WriteManifest(*Folder(), FolderAt(step), manifest), absl::OkStatus());
    for (Host* host : {&a, &b}) {
      for (const std::string& sha256 : {file->sha256, shared}) {
        EXPECT_TRUE(Eventually([&] { return host->cache().OpenFile(sha256) != nullptr; })) << step;
      }
    }
  }
  SpoilOriginal(8, 0);
  Spoil(FolderOfTest() / "store" / kJob / "attempt-1" / "unchanged-rank-0.safetensors");
  for (Host* host : {&a, &fresh}) {
    const auto again = StoreOn(*host, {std::nullopt, {b.peer()}});
    auto reader = CheckpointReader::Open(*again, FolderAt(8));
    ASSERT_TRUE(reader.ok()) << reader.status();
    std::vector<float> numbers(kElements);
    ASSERT_EQ((*reader)->Read("frozen", entry.spec, numbers.data()), absl::OkStatus());
    EXPECT_EQ(numbers[0], 77);
    ASSERT_EQ((*reader)->Read("w", entry.spec, numbers.data()), absl::OkStatus());
    EXPECT_EQ(numbers[0], 8);
    EXPECT_EQ((*reader)->Verify(), absl::OkStatus());
    EXPECT_EQ(again->sources().store(), 0);
  }
}

TEST_F(CopiedShardsStoreTest, APeerThatDiesIsNotMissed) {
  Host a("a"), b("b"), fresh("fresh");
  const auto first = StoreOn(a, {b.peer(), {}}), second = StoreOn(b);
  ASSERT_EQ(Write(*first, *second, 5, *Folder()), absl::OkStatus());
  ASSERT_TRUE(Eventually([&] { return Complete(b) == 2; }));
  const auto again = StoreOn(fresh, {std::nullopt, {b.peer()}});
  auto reader = CheckpointReader::Open(*again, FolderAt(5));
  ASSERT_TRUE(reader.ok()) << reader.status();
  b.Die();
  std::vector<float> numbers(kElements);
  EXPECT_EQ((*reader)->Read("w", Half(0).spec, numbers.data()), absl::OkStatus());
  EXPECT_EQ((*reader)->Verify(), absl::OkStatus());
  EXPECT_EQ(numbers[0], 5);
  EXPECT_GT(again->sources().store(), 0);
  // Before anything was asked for, and for what is written.
  const auto later = StoreOn(fresh, {b.peer(), {b.peer()}});
  EXPECT_EQ(Read(*later, 5, 0).value_or(-1), 5);
  EXPECT_EQ(Write(*later, *later, 6, *Folder()), absl::OkStatus());
}

TEST_F(CopiedShardsStoreTest, ADamagedCopyIsNoticedAndTheStoreReadInstead) {
  Host a("a"), b("b");
  const auto first = StoreOn(a), second = StoreOn(b);
  ASSERT_EQ(Write(*first, *second, 5, *Folder()), absl::OkStatus());
  ASSERT_EQ(a.Files().size(), 1u);
  Spoil(a.Files()[0]);
  const auto again = StoreOn(a);
  EXPECT_EQ(Read(*again, 5, 0).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(again->Distrust());
  EXPECT_EQ(Read(*again, 5, 0).value_or(-1), 5);
  EXPECT_TRUE(a.Files().empty()) << "nobody meets it again";
  // A file of another size is none.
  ASSERT_EQ(Write(*first, *second, 6, *Folder()), absl::OkStatus());
  fs::resize_file(a.Files()[0], 100);
  const auto third = StoreOn(a);
  EXPECT_EQ(Read(*third, 6, 0).value_or(-1), 6);
  EXPECT_FALSE(third->Distrust()) << "no copy was read";
}

TEST_F(CopiedShardsStoreTest, TheLastTwoCheckpointsAreKept) {
  Host a("a"), b("b");
  const auto first = StoreOn(a, {b.peer(), {}});
  const auto written = [&](int step) {
    EXPECT_EQ(Write(*first, *first, step, *Folder()), absl::OkStatus());
    std::vector<std::string> hashes;
    const auto manifest = ReadManifest(*Folder(), FolderAt(step));
    for (const ManifestFile& file : manifest->files) {
      hashes.push_back(file.sha256);
    }
    // All are sent one after the other, the newest one certainly.
    EXPECT_TRUE(Eventually([&] { return b.cache().OpenFile(hashes[1]) != nullptr; }));
    return hashes;
  };
  const auto one = written(1), two = written(2), three = written(3);
  for (const std::string& hash : one) {
    EXPECT_EQ(a.cache().OpenFile(hash), nullptr);
    EXPECT_EQ(b.cache().OpenFile(hash), nullptr);
  }
  for (const auto& hashes : {two, three}) {
    for (const std::string& hash : hashes) EXPECT_NE(a.cache().OpenFile(hash), nullptr);
    EXPECT_NE(b.cache().OpenFile(hashes[1]), nullptr);
  }
}

TEST_F(CopiedShardsStoreTest, WithoutRoomForCopiesTrainingGoesOn) {
  Host full("full", 1000), b("b", 1000), roomy("roomy");
  const auto first = StoreOn(full, {b.peer(), {}}), second = StoreOn(roomy, {b.peer(), {}});
  EXPECT_EQ(Write(*first, *second, 5, *Folder()), absl::OkStatus());
  EXPECT_EQ(Complete(full), 0);
  EXPECT_EQ(Complete(roomy), 1);
  EXPECT_EQ(Read(*first, 5, 0).value_or(-1), 5);
  const auto file = roomy.cache().OpenFile(ReadManifest(*Folder(), FolderAt(5))->files[1].sha256);
  const absl::Status sent = ShardPeerClient(b.peer(), kJob).Put("rank-0", "", *file);
  EXPECT_EQ(sent.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(sent.message(), HasSubstr("--cache-bytes"));
  EXPECT_EQ(b.Files().size(), 0u);
}

TEST_F(CopiedShardsStoreTest, WhatTheStoreDoesNotTakeHasNoCopy) {
  Host a("a"), b("b");
  const auto store = StoreOn(a, {b.peer(), {}});
  {
    auto upload = store->Put(absl::StrCat(FolderAt(1), "/rank-0.safetensors"));
    ASSERT_TRUE(upload.ok());
    ASSERT_TRUE((*upload)->Append("abc", 3).ok());
  }
  EXPECT_TRUE(a.Files().empty());
  EXPECT_EQ(store->Put("../rank-0").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CopiedShardsStoreTest, OnlyWorkersOfTheJobAreServed) {
  Host a("a"), impostor("impostor");
  const std::string content = "of job-1", hash = Sha256Hex(content);
  a.cache().Write(hash, content);
  std::string read(content.size(), '\0');
  const auto size = static_cast<int64_t>(content.size());
  ASSERT_EQ(ShardPeerClient(a.peer(), kJob).Read(hash, 0, size, read.data()), absl::OkStatus());
  EXPECT_EQ(read, content);
  v1::ShardPeer guessed = a.peer(), in_clear = a.peer(), elsewhere = a.peer();
  guessed.set_key("guessed");
  in_clear.set_certificate("");
  elsewhere.set_certificate(impostor.peer().certificate());
  for (const auto& [peer, job, code] :
       std::vector<std::tuple<v1::ShardPeer, std::string, absl::StatusCode>>{
           {guessed, kJob, absl::StatusCode::kUnauthenticated},
           {a.peer("job-2"), kJob, absl::StatusCode::kUnauthenticated},
           {a.peer(), "job-2", absl::StatusCode::kUnauthenticated},
           {in_clear, kJob, absl::StatusCode::kUnavailable},
           {elsewhere, kJob, absl::StatusCode::kUnavailable}}) {
    ShardPeerClient client(peer, job);
    EXPECT_EQ(client.Read(hash, 0, size, read.data()).code(), code);
    EXPECT_EQ(client.Find({hash}, absl::Seconds(10)).status().code(), code);
    const auto file = a.cache().OpenFile(hash);
    EXPECT_EQ(client.Put("rank-0.safetensors", hash, *file).code(), code);
  }
}

TEST_F(CopiedShardsStoreTest, OtherBytesThanAnnouncedAreRefused) {
  Host a("a"), b("b");
  const std::string content = "content";
  a.cache().Write(Sha256Hex(content), content);
  const auto file = a.cache().OpenFile(Sha256Hex(content));
  ShardPeerClient client(b.peer(), kJob);
  EXPECT_EQ(client.Put("rank-0", Sha256Hex("other"), *file).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(client.Put("../rank-0", Sha256Hex(content), *file).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(b.Files().empty());
  std::string read(100, '\0');
  ASSERT_EQ(client.Put("rank-0", Sha256Hex(content), *file), absl::OkStatus());
  EXPECT_EQ(client.Read(Sha256Hex(content), 3, 5, read.data()).code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(client.Read(Sha256Hex("other"), 0, 1, read.data()).code(), absl::StatusCode::kNotFound);
  client.Cancel();
  EXPECT_EQ(client.Read(Sha256Hex(content), 0, 1, read.data()).code(),
            absl::StatusCode::kCancelled);
}

class TestedCopies : public TestedStore {
 public:
  TestedCopies() { fs::create_directories(FolderOfTest() / "store"); }
  ~TestedCopies() override { fs::remove_all(FolderOfTest()); }
  CheckpointStore& store() override { return store_; }

 private:
  const std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  Host own_{"own"}, other_{"other"};
  CopiedShardsStore store_{
      std::make_shared<FolderCheckpointStore>(*files_, FolderOfTest() / "store"),
      kJob,
      &own_.copies(),
      {other_.peer(), {other_.peer()}}};
};

std::unique_ptr<TestedStore> MakeCopies() { return std::make_unique<TestedCopies>(); }

INSTANTIATE_TEST_SUITE_P(Copies, CheckpointStoreContract, ::testing::Values(MakeCopies));

}  // namespace
}  // namespace espalier
