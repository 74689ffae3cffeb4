#include "storage/checkpoint.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/testing/faulty_file_system.h"
#include "base/testing/forwarding_file_system.h"
#include "storage/folder_checkpoint_store.h"

namespace espalier {
namespace {

// Tensors whose element i is base + i.
class CountingSource : public CheckpointSource {
 public:
  explicit CountingSource(std::vector<CheckpointEntry> entries) : entries_(std::move(entries)) {}

  static std::vector<float> Region(const TensorSpec& spec, float base) {
    std::vector<float> values;
    Dims index(spec.dims.size(), 0);
    for (int64_t i = 0; i < spec.num_elements(); ++i) {
      int64_t at = 0;
      for (size_t d = 0; d < index.size(); ++d) {
        at = at * spec.global[d] + spec.offset[d] + index[d];
      }
      values.push_back(base + static_cast<float>(at));
      for (int d = static_cast<int>(index.size()) - 1; d >= 0 && ++index[d] == spec.dims[d]; --d) {
        index[d] = 0;
      }
    }
    return values;
  }
  static float Base(const std::string& name) { return static_cast<float>(name.size() * 1000); }

  absl::Status Read(int entry, std::vector<char>* bytes) override {
    const auto values = Region(entries_[entry].spec, Base(entries_[entry].name));
    std::memcpy(bytes->data(), values.data(), bytes->size());
    return absl::OkStatus();
  }

 private:
  std::vector<CheckpointEntry> entries_;
};

TensorSpec Shard(Dims dims, Dims offset, Dims global) {
  return {DType::kF32, std::move(dims), std::move(offset), std::move(global)};
}

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() {
    name_ = std::string("ckpt-") + testing::UnitTest::GetInstance()->current_test_info()->name();
    directory_ = JoinPath(testing::TempDir(), name_);
    std::filesystem::remove_all(directory_);
  }
  // Two ranks: w is split by rows, b and its moment are on both, a scalar is on rank 1.
  Manifest WriteAll() {
    Manifest manifest;
    manifest.job_id = "j1";
    manifest.steps_done = 40;
    manifest.graph_fingerprint = "abc";
    for (int rank = 0; rank < 2; ++rank) {
      std::vector<CheckpointEntry> entries = {
          {"w", Shard({3, 4}, {rank * 3, 0}, {6, 4}), false},
          {"bias", Shard({4}, {0}, {4}), false},
          {"bias.adam_m", Shard({4}, {0}, {4}), true},
      };
      if (rank == 1) entries.push_back({"scalar@odd", Shard({}, {}, {}), false});
      CountingSource source(entries);
      auto file = WriteCheckpointShard(store_, name_, rank, entries, source);
      EXPECT_TRUE(file.ok()) << file.status();
      manifest.files.push_back(*file);
    }
    EXPECT_TRUE(WriteManifest(store_, name_, manifest).ok());
    return manifest;
  }

  // Reads all tensors.
  absl::Status VerifyAll() {
    auto reader = CheckpointReader::Open(store_, name_);
    if (!reader.ok()) return reader.status();
    for (const auto& [name, tensor] : (*reader)->tensors()) {
      const TensorSpec whole = TensorSpec::Whole({tensor.dtype, tensor.global});
      std::vector<float> values(static_cast<size_t>(whole.num_elements()));
      if (absl::Status s = (*reader)->Read(name, whole, values.data()); !s.ok()) return s;
    }
    return (*reader)->Verify();
  }

  FaultyFileSystem files_{NewPosixFileSystem()};
  FolderCheckpointStore store_{files_, testing::TempDir()};
  std::string name_;       // of the checkpoint, in the store
  std::string directory_;  // its folder
};

// Counts bytes read by file name.
class CountingFileSystem : public ForwardingFileSystem {
 public:
  using ForwardingFileSystem::ForwardingFileSystem;

  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) override {
    absl::StatusOr<std::unique_ptr<ReadableFile>> file = base().Open(path);
    if (!file.ok()) return file.status();
    return std::make_unique<File>(*std::move(file), &bytes[path.substr(path.rfind('/') + 1)]);
  }

  std::map<std::string, int64_t> bytes;

 private:
  class File : public ReadableFile {
   public:
    File(std::unique_ptr<ReadableFile> file, int64_t* count)
        : file_(std::move(file)), count_(count) {}
    int64_t size() const override { return file_->size(); }
    absl::Status Read(int64_t offset, int64_t bytes, void* out) const override {
      *count_ += bytes;
      return file_->Read(offset, bytes, out);
    }

   private:
    const std::unique_ptr<ReadableFile> file_;
    int64_t* const count_;
  };
};

TEST_F(CheckpointTest, AnyRegionIsReadUnderAnotherSharding) {
  WriteAll();
  auto reader = CheckpointReader::Open(store_, name_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->manifest().steps_done, 40);
  EXPECT_TRUE((*reader)->tensors().at("bias.adam_m").is_state);
  for (const TensorSpec& spec : {Shard({6, 4}, {0, 0}, {6, 4}), Shard({6, 2}, {0, 2}, {6, 4}),
                                 Shard({2, 4}, {2, 0}, {6, 4}), Shard({1, 1}, {5, 3}, {6, 4})}) {
    std::vector<float> values(static_cast<size_t>(spec.num_elements()));
    ASSERT_TRUE((*reader)->Read("w", spec, values.data()).ok());
    EXPECT_EQ(values, CountingSource::Region(spec, CountingSource::Base("w")));
  }
  float scalar = 0;
  ASSERT_TRUE((*reader)->Read("scalar@odd", Shard({}, {}, {}), &scalar).ok());
  EXPECT_EQ(scalar, CountingSource::Base("scalar@odd"));
  float spare[64];
  EXPECT_EQ((*reader)->Read("v", Shard({4}, {0}, {4}), spare).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ((*reader)->Read("w", Shard({6, 5}, {0, 0}, {6, 5}), spare).code(),
            absl::StatusCode::kInvalidArgument);
}

// Tracks names that a power failure would lose: those in a directory not synced since.
class UnsyncedNames : public ForwardingFileSystem {
 public:
  UnsyncedNames() : ForwardingFileSystem(NewPosixFileSystem()) {}

  absl::Status CreateDirectories(const std::string& path) override {
    if (calls_left-- <= 0) return absl::CancelledError("killed");
    for (std::filesystem::path p = path; !p.empty() && !std::filesystem::exists(p);
         p = p.parent_path()) {
      if (p.has_filename()) unsynced.insert(p.string());
    }
    return base().CreateDirectories(path);
  }
  absl::Status SyncDirectory(const std::string& path) override {
    if (calls_left-- <= 0) return absl::CancelledError("killed");
    if (path == denied) return absl::PermissionDeniedError("not ours");
    synced.insert(path);
    std::erase_if(unsynced, [&](const std::string& name) {
      return std::filesystem::path(name).parent_path() == path;
    });
    return base().SyncDirectory(path);
  }

  std::set<std::string> unsynced, synced;
  int calls_left = 1000;  // afterwards the worker counts as killed
  std::string denied;
};

TEST(DurableDirectories, EveryNewNameIsSynced) {
  UnsyncedNames files;
  const std::string root = JoinPath(testing::TempDir(), "durable");
  std::filesystem::remove_all(root);
  for (const char* end : {"", "/"}) {
    for (const char* step : {"/step-5", "/step-6"}) {
      const std::string attempt = root + "/job-1/attempt-1";
      files.synced.clear();
      ASSERT_TRUE(CreateDurableDirectories(files, attempt + step + end).ok());
      EXPECT_TRUE(std::filesystem::is_directory(attempt + step));
      EXPECT_TRUE(files.unsynced.empty()) << *files.unsynced.begin();
      // Existing names too: their creator may not have synced them.
      EXPECT_EQ(files.synced.count(attempt), 1u);
      EXPECT_EQ(files.synced.count(root + "/job-1"), 1u);
    }
    std::filesystem::remove_all(root + "/job-1");
  }
  std::ofstream(root + "/file") << "x";
  EXPECT_FALSE(CreateDurableDirectories(files, root + "/file/step-1").ok());
}

// Its folders exist when the next attempt starts, but must not count as durable.
TEST(DurableDirectories, NextWorkerSyncsWhatAKilledOneLeft) {
  const std::string root = JoinPath(testing::TempDir(), "killed");
  for (const char* next : {"/job-1/attempt-1/step-1", "/job-1/attempt-2/step-1"}) {
    bool killed = true;
    for (int calls = 0; killed; ++calls) {
      ASSERT_LT(calls, 100);
      std::filesystem::remove_all(root);
      UnsyncedNames files;
      files.calls_left = calls;
      killed = !CreateDurableDirectories(files, root + "/job-1/attempt-1/step-1").ok();
      files.calls_left = 1000;
      ASSERT_TRUE(CreateDurableDirectories(files, root + next).ok());
      for (std::filesystem::path p = root + next; p.string().size() >= root.size();
           p = p.parent_path()) {
        EXPECT_EQ(files.unsynced.count(p.string()), 0u) << p << " after " << calls << " calls";
      }
    }
  }
}

// The parents of an existing root may be inaccessible.
TEST(DurableDirectories, ExistingParentsAreNotOpened) {
  UnsyncedNames files;
  const std::string root = JoinPath(testing::TempDir(), "denied");
  std::filesystem::remove_all(root);
  std::filesystem::create_directories(root + "/theirs");
  files.denied = root;
  EXPECT_TRUE(CreateDurableDirectories(files, root + "/theirs/job-1").ok());
  EXPECT_EQ(CreateDurableDirectories(files, root + "/job-1").code(),
            absl::StatusCode::kPermissionDenied);
}

TEST_F(CheckpointTest, FolderWithoutManifestIsNoCheckpoint) {
  WriteAll();
  ASSERT_TRUE(files_.Remove(JoinPath(directory_, kManifestFile)).ok());
  EXPECT_EQ(CheckpointReader::Open(store_, name_).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(CheckpointTest, DamageIsFoundAndNamed) {
  const Manifest manifest = WriteAll();
  const std::string shard = JoinPath(directory_, manifest.files[1].name);
  {
    std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-3, std::ios::end);
    file.put('\x7f');
  }
  absl::Status status = VerifyAll();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(std::string(status.message()).find("rank-1.safetensors"), std::string::npos) << status;
  EXPECT_FALSE(ExportHuggingFace(store_, name_, "{}", files_, directory_ + "-export").ok());
  EXPECT_FALSE(files_.Open(directory_ + "-export/model.safetensors").ok());
  std::filesystem::resize_file(shard, static_cast<uintmax_t>(manifest.files[1].bytes - 1));
  status = CheckpointReader::Open(store_, name_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(std::string(status.message()).find("the manifest says"), std::string::npos) << status;
  ASSERT_TRUE(files_.Remove(shard).ok());
  status = CheckpointReader::Open(store_, name_).status();
  EXPECT_NE(std::string(status.message()).find("missing"), std::string::npos) << status;
  Manifest one = manifest;  // as if a shard were missing
  one.files.pop_back();
  EXPECT_EQ(WriteManifest(store_, name_, one).code(), absl::StatusCode::kAlreadyExists);
  ASSERT_TRUE(files_.Remove(JoinPath(directory_, kManifestFile)).ok());
  ASSERT_TRUE(WriteManifest(store_, name_, one).ok());
  auto reader = CheckpointReader::Open(store_, name_);
  ASSERT_TRUE(reader.ok());
  float values[24];
  status = (*reader)->Read("w", Shard({6, 4}, {0, 0}, {6, 4}), values);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(std::string(status.message()).find("12 of the 24"), std::string::npos) << status;
}

// A rank must not read all of a large checkpoint, nor any of it twice.
TEST_F(CheckpointTest, RankReadsAndVerifiesOnlyItsOwnShard) {
  Manifest manifest;
  std::vector<CheckpointEntry> entries[2];
  for (int rank = 0; rank < 2; ++rank) {
    for (const char* name : {"w", "w.adam_m", "w.adam_v"}) {
      entries[rank].push_back({name, Shard({256, 64}, {rank * 256, 0}, {512, 64}), false});
    }
    entries[rank].push_back({"bias", Shard({4096}, {0}, {4096}), false});  // whole on both
    CountingSource source(entries[rank]);
    auto file = WriteCheckpointShard(store_, name_, rank, entries[rank], source);
    ASSERT_TRUE(file.ok()) << file.status();
    manifest.files.push_back(*file);
  }
  ASSERT_TRUE(WriteManifest(store_, name_, manifest).ok());
  CountingFileSystem counted(NewPosixFileSystem());
  FolderCheckpointStore counting(counted, testing::TempDir());
  auto reader = CheckpointReader::Open(counting, name_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  const int64_t header = counted.bytes.at("rank-0.safetensors");
  EXPECT_LT(header, 4096);
  std::vector<float> values(256 * 64);
  for (const CheckpointEntry& entry : entries[0]) {
    ASSERT_TRUE((*reader)->Read(entry.name, entry.spec, values.data()).ok());
  }
  EXPECT_TRUE((*reader)->Verify().ok());
  EXPECT_EQ(counted.bytes.at("rank-0.safetensors"), manifest.files[0].bytes + header);
  EXPECT_LT(counted.bytes.at("rank-1.safetensors"), 4096);

  // Reading only the middle of a file is verified as well.
  ASSERT_TRUE((*reader)->Read("w.adam_m", entries[1][1].spec, values.data()).ok());
  EXPECT_TRUE((*reader)->Verify().ok());
  std::fstream file(JoinPath(directory_, "rank-1.safetensors"),
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-3, std::ios::end);
  file.put('\x7f');
  file.close();
  ASSERT_TRUE((*reader)->Read("w.adam_m", entries[1][1].spec, values.data()).ok());
  EXPECT_EQ((*reader)->Verify().code(), absl::StatusCode::kDataLoss);

  // A check of a checkpoint reads all of it.
  auto unread = CheckpointReader::Open(store_, name_);
  ASSERT_TRUE(unread.ok()) << unread.status();
  EXPECT_EQ((*unread)->Verify(), absl::OkStatus());
  EXPECT_EQ((*unread)->VerifyAll([] { return true; }).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ((*unread)->VerifyAll().code(), absl::StatusCode::kDataLoss);
}

// The coordinator and workers read large tensors in parts.
TEST_F(CheckpointTest, PartsInOrderCostNoMoreThanTheWhole) {
  WriteAll();
  for (const auto& [first, columns] : {std::pair<int64_t, int64_t>{0, 4}, {1, 2}}) {
    CountingFileSystem counted(NewPosixFileSystem());
    FolderCheckpointStore counting(counted, testing::TempDir());
    auto reader = CheckpointReader::Open(counting, name_);
    ASSERT_TRUE(reader.ok()) << reader.status();
    counted.bytes.at("rank-0.safetensors") = counted.bytes.at("rank-1.safetensors") = 0;
    for (int64_t row = 0; row < 6; row += 2) {  // rows 2 and 3 are of two ranks
      const TensorSpec part = Shard({2, columns}, {row, first}, {6, 4});
      std::vector<float> values(static_cast<size_t>(part.num_elements()));
      ASSERT_TRUE((*reader)->Read("w", part, values.data()).ok());
      EXPECT_EQ(values, CountingSource::Region(part, CountingSource::Base("w")));
    }
    EXPECT_TRUE((*reader)->Verify().ok());
    for (const ManifestFile& file : (*reader)->manifest().files) {
      EXPECT_EQ(counted.bytes.at(file.name), file.bytes) << file.name;
    }
  }
}

TEST_F(CheckpointTest, BadManifestsAreRefusedByField) {
  WriteAll();
  auto read = [&](const std::string& text) {
    EXPECT_TRUE(WriteFileAtomically(files_, JoinPath(directory_, kManifestFile), text).ok());
    return ReadManifest(store_, name_).status();
  };
  EXPECT_EQ(read("{").code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(read("{\"format_version\":3}").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(read("{\"format_version\":0}").code(), absl::StatusCode::kDataLoss);
  const absl::Status escape = read(
      "{\"format_version\":1,\"job_id\":\"j\",\"steps_done\":1,\"graph_fingerprint\":\"\","
      "\"files\":[{\"name\":\"../x\",\"sha256\":\"\",\"bytes\":1}]}");
  EXPECT_NE(std::string(escape.message()).find("files[0]"), std::string::npos) << escape;
}

// Two ranks' parameters of rows that training does not change are in files beside the folders of
// two checkpoints, which hold the others.
TEST_F(CheckpointTest, CheckpointsShareFilesOfUnchangedValues) {
  const std::string job = name_;
  const auto folder = [&](int step) { return absl::StrCat(job, "/attempt-1/step-", step); };
  std::vector<ManifestFile> shared;
  for (int rank = 0; rank < 2; ++rank) {
    const std::vector<CheckpointEntry> entries = {
        {"frozen", Shard({3, 4}, {rank * 3, 0}, {6, 4}), false}};
    CountingSource source(entries);
    const auto file = WriteUnchangedShard(store_, folder(10), rank, entries, source);
    ASSERT_TRUE(file.ok()) << file.status();
    shared.push_back(*file);
    EXPECT_EQ(PathOf(folder(20), *file),
              absl::StrCat(job, "/attempt-1/unchanged-rank-", rank, ".safetensors"));
  }
  for (const int step : {10, 20}) {
    Manifest manifest;
    manifest.steps_done = step;
    const std::vector<CheckpointEntry> entries = {{"w", Shard({4}, {0}, {4}), false}};
    CountingSource source(entries);
    const auto file = WriteCheckpointShard(store_, folder(step), 0, entries, source);
    ASSERT_TRUE(file.ok()) << file.status();
    manifest.files = {*file, shared[0], shared[1]};
    ASSERT_TRUE(WriteManifest(store_, folder(step), manifest).ok());
  }

  const Manifest manifest = *ReadManifest(store_, folder(20));
  EXPECT_EQ(manifest.format_version, 2);  // programs that do not know such files refuse it
  EXPECT_FALSE(manifest.files[0].shared);
  EXPECT_TRUE(manifest.files[1].shared && manifest.files[2].shared);
  {
    auto reader = CheckpointReader::Open(store_, folder(20));
    ASSERT_TRUE(reader.ok()) << reader.status();
    const TensorSpec part = Shard({4, 2}, {1, 1}, {6, 4});  // of both ranks
    std::vector<float> values(8);
    ASSERT_TRUE((*reader)->Read("frozen", part, values.data()).ok());
    EXPECT_EQ(values, CountingSource::Region(part, CountingSource::Base("frozen")));
    EXPECT_EQ((*reader)->Verify(), absl::OkStatus());
  }
  const std::string out = directory_ + "-export";
  ASSERT_TRUE(ExportHuggingFace(store_, folder(20), "{}", files_, out).ok());
  auto exported = SafetensorsFile::Open(files_, JoinPath(out, "model.safetensors"));
  ASSERT_TRUE(exported.ok()) << exported.status();
  std::vector<float> values(24);
  ASSERT_TRUE((*exported)->Read((*exported)->tensors().at("frozen"), 0, 96, values.data()).ok());
  EXPECT_EQ(values,
            CountingSource::Region(Shard({6, 4}, {0, 0}, {6, 4}), CountingSource::Base("frozen")));
  std::filesystem::remove_all(out);

  // Damage of a shared file is damage of each, and named.
  const std::string path = JoinPath(testing::TempDir(), PathOf(folder(20), shared[1]));
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-3, std::ios::end);
    file.put('\x7f');
  }
  for (const int step : {10, 20}) {
    auto reader = CheckpointReader::Open(store_, folder(step));
    ASSERT_TRUE(reader.ok()) << reader.status();
    const absl::Status damage = (*reader)->VerifyAll();
    EXPECT_EQ(damage.code(), absl::StatusCode::kDataLoss);
    EXPECT_NE(damage.message().find(shared[1].name), std::string::npos) << damage;
  }
  std::filesystem::resize_file(path, static_cast<uintmax_t>(shared[1].bytes - 1));
  absl::Status damage = CheckShardSizes(store_, folder(20), manifest);
  EXPECT_EQ(damage.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(damage.message().find(shared[1].name), std::string::npos) << damage;
  std::filesystem::remove(path);
  damage = CheckShardSizes(store_, folder(10), manifest);
  EXPECT_EQ(damage.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(damage.message().find(shared[1].name), std::string::npos) << damage;

  // Only a manifest that says that it is of this kind has such files.
  std::string text = *ReadObject(store_, JoinPath(folder(10), kManifestFile), kMaxManifestBytes);
  const std::string version = "\"format_version\": ";
  text.replace(text.find(version) + version.size(), 1, "1");
  const std::string manifest_path =
      JoinPath(testing::TempDir(), JoinPath(folder(10), kManifestFile));
  ASSERT_TRUE(WriteFileAtomically(files_, manifest_path, text).ok());
  EXPECT_EQ(ReadManifest(store_, folder(10)).status().code(), absl::StatusCode::kDataLoss);
  std::filesystem::remove_all(directory_);
}

TEST_F(CheckpointTest, FullDiskLeavesNoPartialFiles) {
  const Manifest manifest = WriteAll();
  std::vector<CheckpointEntry> entries = {{"w", Shard({64, 64}, {0, 0}, {64, 64}), false}};
  CountingSource source(entries);
  for (int64_t room : {0, 5, 200, 9000, 16384}) {
    files_.set_free_bytes(room);
    auto written = WriteCheckpointShard(store_, name_, 0, entries, source);
    EXPECT_EQ(written.status().code(), absl::StatusCode::kResourceExhausted) << room;
    EXPECT_FALSE(WriteManifest(store_, name_, manifest).ok()) << room;
    files_.set_free_bytes(1 << 30);
    EXPECT_EQ(
        *files_.List(directory_),
        (std::vector<std::string>{"manifest.json", "rank-0.safetensors", "rank-1.safetensors"}));
    EXPECT_TRUE(VerifyAll().ok());
  }
}

TEST_F(CheckpointTest, ExportsWholeParametersWithoutOptimizerState) {
  WriteAll();
  const std::string out = directory_ + "-export";
  const std::string config = "{\"model_type\": \"llama\"}";
  ASSERT_TRUE(ExportHuggingFace(store_, name_, config, files_, out).ok());
  EXPECT_EQ(*ReadWholeFile(files_, JoinPath(out, "config.json"), 1000), config);
  auto file = SafetensorsFile::Open(files_, JoinPath(out, "model.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->tensors().size(), 3u);
  EXPECT_EQ((*file)->tensors().count("bias.adam_m"), 0u);
  std::vector<float> w(24);
  ASSERT_TRUE((*file)->Read((*file)->tensors().at("w"), 0, 96, w.data()).ok());
  EXPECT_EQ(w, CountingSource::Region(Shard({6, 4}, {0, 0}, {6, 4}), CountingSource::Base("w")));
}

// Of ranks that hold columns; 20 MiB are exported in two parts.
TEST_F(CheckpointTest, ExportsLargeParametersInParts) {
  const Dims global = {5, 1 << 20};
  Manifest manifest;
  for (int rank = 0; rank < 2; ++rank) {
    const std::vector<CheckpointEntry> entries = {
        {"w", Shard({5, 1 << 19}, {0, rank << 19}, global), false}};
    CountingSource source(entries);
    auto file = WriteCheckpointShard(store_, name_, rank, entries, source);
    ASSERT_TRUE(file.ok()) << file.status();
    manifest.files.push_back(*file);
  }
  ASSERT_TRUE(WriteManifest(store_, name_, manifest).ok());
  const std::string out = directory_ + "-export";
  ASSERT_TRUE(ExportHuggingFace(store_, name_, "{}", files_, out).ok());
  auto file = SafetensorsFile::Open(files_, JoinPath(out, "model.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status();
  const SafetensorsEntry& entry = (*file)->tensors().at("w");
  std::vector<float> w(static_cast<size_t>(NumElements(global)));
  ASSERT_TRUE((*file)->Read(entry, 0, entry.bytes, w.data()).ok());
  EXPECT_TRUE(w == CountingSource::Region(Shard(global, {0, 0}, global), 1000));
  std::filesystem::remove_all(directory_);
  std::filesystem::remove_all(out);
}

}  // namespace
}  // namespace espalier
