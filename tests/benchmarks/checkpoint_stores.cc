// What a shard costs that goes through the coordinator instead of a shared folder: both ways write
// the same bytes, durably, to the same disk, in turns, and read them again.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "storage/folder_checkpoint_store.h"
#include "tests/benchmarks/report.h"
#include "tests/benchmarks/seconds.h"
#include "tests/storage/storage_server.h"

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

int Run() {
  StorageServer coordinator;
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  FolderCheckpointStore folder(*files, coordinator.data_folder().root() + "/checkpoints");
  const std::unique_ptr<CoordinatorStore> streamed = coordinator.Store("checkpoints");
  std::string part(kPart, '\0');
  for (size_t i = 0; i < part.size(); ++i) part[i] = static_cast<char>(i * 2654435761u >> 13);

  Report report("checkpoint_stores");
  report.Table("Shards through the coordinator against a folder, medians",
               {"shard", "write, folder", "write, coordinator", "ratio", "read, folder",
                "read, coordinator", "ratio"});
  for (const int64_t bytes : {int64_t{1} << 20, int64_t{64} << 20, int64_t{512} << 20}) {
    std::vector<double> times[2][2], ratios[2];  // [write or read][folder or coordinator]
    for (int round = 0; round < kRounds; ++round) {
      for (int store = 0; store < 2; ++store) {
        CheckpointStore& used = store == 0 ? static_cast<CheckpointStore&>(folder) : *streamed;
        const std::string name = absl::StrCat("job-1/attempt-1/", store, "/rank-0.safetensors");
        double begin = Seconds();
        absl::Status status = Write(used, name, part, bytes);
        times[0][store].push_back(Seconds() - begin);
        begin = Seconds();
        if (status.ok()) status = Read(used, name, &part);
        times[1][store].push_back(Seconds() - begin);
        if (!status.ok()) {
          std::fprintf(stderr, "%s\n", status.ToString().c_str());
          return 1;
        }
      }
      for (int what = 0; what < 2; ++what) {
        ratios[what].push_back(times[what][1].back() / times[what][0].back());
      }
    }
    const auto milliseconds = [&](int what, int store) {
      return Number(1e3 * Median(times[what][store]), 1);
    };
    report.Row({Text(absl::StrCat(bytes >> 20, " MiB")), milliseconds(0, 0), milliseconds(0, 1),
                Number(Median(ratios[0]), 2), milliseconds(1, 0), milliseconds(1, 1),
                Number(Median(ratios[1]), 2)});
  }
  report.Note("Milliseconds. Durable when written; read from the page cache.");
  return report.Print(false, "");
}

}  // namespace
}  // namespace espalier

int main() { return espalier::Run(); }
