#include "server/jobs/checkpoint_folders.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "storage/checkpoint.h"
#include "storage/manifest.h"

namespace espalier {
namespace {

std::vector<std::string> NamesIn(FileSystem& files, const std::string& folder) {
  absl::StatusOr<std::vector<std::string>> names = files.List(folder);
  return names.ok() ? *std::move(names) : std::vector<std::string>();
}

void RemoveWithinJob(const std::string& job_folder, const std::string& within_job) {
  std::error_code failed;
  std::filesystem::remove_all(std::filesystem::path(job_folder) / within_job, failed);
}

}  // namespace

std::string CheckpointWithinJob(const std::string& directory) {
  // Normalized, as a worker could report a path with "..".
  const std::filesystem::path path = std::filesystem::path(directory).lexically_normal();
  return (path.parent_path().filename() / path.filename()).string();
}

std::vector<StoredCheckpoint> ListCheckpoints(FileSystem& files, const std::string& job_folder) {
  std::vector<StoredCheckpoint> found;
  for (const std::string& attempt : NamesIn(files, job_folder)) {
    for (const std::string& name : NamesIn(files, JoinPath(job_folder, attempt))) {
      const std::string within_job = JoinPath(attempt, name);
      absl::StatusOr<Manifest> manifest = ReadManifest(files, JoinPath(job_folder, within_job));
      if (manifest.ok()) found.push_back({within_job, manifest->steps_done});
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.steps_done > b.steps_done; });
  return found;
}

StoredCheckpoint FindCheckpoint(FileSystem& files, const std::string& job_folder,
                                int64_t steps_done) {
  for (const StoredCheckpoint& found : ListCheckpoints(files, job_folder)) {
    if (found.steps_done != steps_done) continue;
    const std::string folder = JoinPath(job_folder, found.within_job);
    if (CheckCheckpoint(files, folder, steps_done).ok()) return found;
  }
  return {};
}

StoredCheckpoint FindCheckpointBefore(FileSystem& files, const std::string& job_folder,
                                      int64_t steps_done) {
  for (const StoredCheckpoint& found : ListCheckpoints(files, job_folder)) {
    if (found.steps_done >= steps_done) continue;
    const std::string folder = JoinPath(job_folder, found.within_job);
    if (CheckCheckpoint(files, folder, found.steps_done).ok()) return found;
  }
  return {};
}

StoredCheckpoint ReplaceCheckpoint(FileSystem& files, const std::string& job_folder,
                                   const StoredCheckpoint& damaged) {
  const std::string manifest = JoinPath(JoinPath(job_folder, damaged.within_job), kManifestFile);
  // It may be what is missing.
  files.Rename(manifest, absl::StrCat(manifest, ".damaged")).IgnoreError();
  StoredCheckpoint later;
  for (const StoredCheckpoint& other : ListCheckpoints(files, job_folder)) {
    if (other.within_job == damaged.within_job) continue;
    if (!CheckCheckpoint(files, JoinPath(job_folder, other.within_job), other.steps_done).ok()) {
      continue;
    }
    if (other.steps_done <= damaged.steps_done) return other;
    later = other;
  }
  return later;
}

absl::Status CheckCheckpoint(FileSystem& files, const std::string& directory, int64_t steps_done) {
  absl::StatusOr<Manifest> manifest = ReadManifest(files, directory);
  if (!manifest.ok()) return manifest.status();
  if (manifest->steps_done != steps_done) {
    return absl::DataLossError(absl::StrCat("'", directory, "' is of step ", manifest->steps_done,
                                            ", the job's record says ", steps_done));
  }
  return CheckShardSizes(files, directory, *manifest);
}

absl::Status VerifyCheckpoint(FileSystem& files, const std::string& directory, int64_t steps_done,
                              const std::function<bool()>& stopped) {
  if (absl::Status s = CheckCheckpoint(files, directory, steps_done); !s.ok()) return s;
  absl::StatusOr<std::unique_ptr<CheckpointReader>> reader =
      CheckpointReader::Open(files, directory);
  return reader.ok() ? (*reader)->VerifyAll(stopped) : reader.status();
}

bool MeansDamage(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsNotFound(status) || absl::IsOutOfRange(status) ||
         absl::IsInvalidArgument(status);
}

void RemoveCheckpoints(FileSystem& files, const std::string& job_folder, const std::string& keep,
                       int64_t best_steps) {
  std::error_code failed;
  if (keep.empty()) {
    for (const std::string& name : NamesIn(files, job_folder)) {
      if (name != kStreamFolder) RemoveWithinJob(job_folder, name);
    }
    std::filesystem::remove(job_folder, failed);  // if it is empty
    return;
  }
  const std::string kept = JoinPath(job_folder, keep);
  if (!std::filesystem::exists(JoinPath(kept, kManifestFile), failed)) {
    spdlog::warn("the checkpoint {} is not there; nothing in {} is removed", keep, job_folder);
    return;
  }
  std::set<std::string> stay = {keep};
  if (absl::StatusOr<Manifest> manifest = ReadManifest(files, kept); manifest.ok()) {
    bool spare = false;
    for (const StoredCheckpoint& other : ListCheckpoints(files, job_folder)) {
      if (other.steps_done >= manifest->steps_done) continue;
      if (!spare || other.steps_done == best_steps) stay.insert(other.within_job);
      spare = true;
    }
  } else {
    spdlog::warn("the checkpoint {} cannot be read: {}; nothing in {} is removed", keep,
                 manifest.status().ToString(), job_folder);
    return;
  }
  for (const std::string& attempt : NamesIn(files, job_folder)) {
    if (attempt == kStreamFolder) continue;
    bool any = false;
    for (const std::string& name : NamesIn(files, JoinPath(job_folder, attempt))) {
      const bool stays = stay.count(JoinPath(attempt, name)) > 0;
      if (!stays) RemoveWithinJob(job_folder, JoinPath(attempt, name));
      any = any || stays;
    }
    if (!any) RemoveWithinJob(job_folder, attempt);
  }
}

void RemoveOlderCheckpoints(FileSystem& files, const std::string& job_folder,
                            const StoredCheckpoint& newest, const std::string& spare,
                            int64_t best_steps) {
  for (const StoredCheckpoint& other : ListCheckpoints(files, job_folder)) {
    if (other.steps_done >= newest.steps_done || other.within_job == spare) continue;
    if (other.steps_done == best_steps) continue;
    RemoveWithinJob(job_folder, other.within_job);
  }
}

}  // namespace espalier
