// What a shard costs that goes through the coordinator instead of a shared folder, without and with
// a copy on the worker's disk, which is also sent to another worker: all write the same bytes,
// durably, to the same disk, in turns, and read them again.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/file_system.h"
#include "storage/folder_checkpoint_store.h"
#include "storage/shard_key.h"
#include "tests/benchmarks/report.h"
#include "tests/benchmarks/seconds.h"
#include "tests/storage/storage_server.h"
#include "worker/storage/copied_shards_store.h"
#include "worker/storage/shard_server.h"

namespace espalier {
namespace {

constexpr int64_t kPart = 4 << 20;  // what a rank appends at once
constexpr int kRounds = 7;

absl::Status Write(CheckpointStore& store, const std::string& name, const std::string& part,
                   int64_t bytes) {
  auto upload = store.Put(name);
  if (!upload.ok()) return upload.status();
  for (int64_t done = 0; done < bytes; done += kPart) {
    const absl::Status s = (*upload)->Append(part.data(), std::min(kPart, bytes - done));
    if (!s.ok()) return s;
  }
  return (*upload)->Commit();
}

absl::Status Read(CheckpointStore& store, const std::string& name, std::string* part) {
  auto file = store.Open(name);
  if (!file.ok()) return file.status();
  for (int64_t done = 0; done < (*file)->size(); done += kPart) {
    const absl::Status s =
        (*file)->Read(done, std::min(kPart, (*file)->size() - done), part->data());
    if (!s.ok()) return s;
  }
  return absl::OkStatus();
}

enum Way { kFolder, kCoordinator, kCopied, kWays };

// A worker of another host that keeps copies.
class OtherWorker {
 public:
  explicit OtherWorker(const std::string& folder)
      : cache_(*HostCache::Open(folder, int64_t{8} << 30)), copies_(cache_.get()) {
    ShardServerOptions options;
    options.listen_host = "127.0.0.1";
    options.call_key = "the call key";
    options.copies = &copies_;
    server_ = *ShardServer::Start(options);
  }
  v1::ShardPeer peer() const {
    v1::ShardPeer peer;
    peer.set_address(absl::StrCat("127.0.0.1:", server_->port()));
    peer.set_key(ShardKey("the call key", "job-1"));
    peer.set_certificate(server_->certificate());
    return peer;
  }
  // Waits for a file of so many bytes, so that sending it disturbs no other measurement.
  void Await(int64_t bytes) const {
    for (int i = 0; i < 3000; ++i) {
      for (const auto& file : std::filesystem::directory_iterator(cache_->path())) {
        std::error_code gone;
        if (file.path().extension() != ".tmp" &&
            file.file_size(gone) == static_cast<uint64_t>(bytes)) {
          return;
        }
      }
      absl::SleepFor(absl::Milliseconds(10));
    }
  }

 private:
  const std::unique_ptr<HostCache> cache_;
  ShardCopies copies_;
  std::unique_ptr<ShardServer> server_;
};

int Run() {
  StorageServer coordinator;
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  const std::string root = coordinator.data_folder().root();
  FolderCheckpointStore folder(*files, root + "/checkpoints");
  const std::shared_ptr<CoordinatorStore> streamed = coordinator.Store("checkpoints");
  const auto cache = *HostCache::Open(root + "/own", int64_t{8} << 30);
  ShardCopies copies(cache.get());
  const OtherWorker other(root + "/other");
  CopiedShardsStore copied(streamed, "job-1", &copies, {other.peer(), {}});
  CheckpointStore* const stores[kWays] = {&folder, streamed.get(), &copied};
  std::string part(kPart, '\0');
  for (size_t i = 0; i < part.size(); ++i) part[i] = static_cast<char>(i * 2654435761u >> 13);

  Report report("checkpoint_stores");
  report.Table("Shards through the coordinator against a folder, medians",
               {"shard", "write, folder", "write, coordinator", "ratio", "write, with copies",
                "ratio", "read, folder", "read, coordinator", "ratio"});
  for (const int64_t bytes : {int64_t{1} << 20, int64_t{64} << 20, int64_t{512} << 20}) {
    std::vector<double> writes[kWays], reads[kWays];
    for (int round = 0; round < kRounds; ++round) {
      for (int way = 0; way < kWays; ++way) {
        const std::string name = absl::StrCat("job-1/attempt-1/", way, "/rank-0.safetensors");
        part[0] = static_cast<char>(round);  // no shard is there already
        double begin = Seconds();
        absl::Status status = Write(*stores[way], name, part, bytes);
        writes[way].push_back(Seconds() - begin);
        begin = Seconds();
        if (status.ok()) status = Read(*stores[way], name, &part);
        reads[way].push_back(Seconds() - begin);
        if (!status.ok()) {
          std::fprintf(stderr, "%s\n", status.ToString().c_str());
          return 1;
        }
        if (way == kCopied) other.Await(bytes);
      }
    }
    const auto milliseconds = [](const std::vector<double>& seconds) {
      return Number(1e3 * Median(seconds), 1);
    };
    const auto ratio = [](const std::vector<double>& seconds, const std::vector<double>& to) {
      std::vector<double> ratios;
      for (size_t i = 0; i < to.size(); ++i) ratios.push_back(seconds[i] / to[i]);
      return Number(Median(ratios), 2);
    };
    report.Row({Text(absl::StrCat(bytes >> 20, " MiB")), milliseconds(writes[kFolder]),
                milliseconds(writes[kCoordinator]), ratio(writes[kCoordinator], writes[kFolder]),
                milliseconds(writes[kCopied]), ratio(writes[kCopied], writes[kFolder]),
                milliseconds(reads[kFolder]), milliseconds(reads[kCoordinator]),
                ratio(reads[kCoordinator], reads[kFolder])});
  }
  report.Note("Milliseconds. Durable when written; read from the page cache.");
  return report.Print(false, "");
}

}  // namespace
}  // namespace espalier

int main() { return espalier::Run(); }
