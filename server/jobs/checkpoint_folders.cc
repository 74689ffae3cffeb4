#include "server/jobs/checkpoint_folders.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/recordings/stored_checkpoints.h"
#include "storage/checkpoint.h"
#include "storage/manifest.h"

namespace espalier {
namespace {

// More than another coordinator begins while this one still removes.
constexpr int32_t kLaterAttempts = 64;

// What stays of a job, whatever its checkpoints.
std::vector<std::string> AlwaysStay(const std::string& job, int32_t attempts) {
  std::vector<std::string> stay = {JoinPath(job, kStreamFolder), JoinPath(job, kFetchedFolder)};
  for (int32_t later = 1; later <= kLaterAttempts; ++later) {
    stay.push_back(JoinPath(job, AttemptFolder(attempts + later)));
  }
  return stay;
}

absl::StatusOr<std::vector<StoredCheckpoint>> WholeCheckpoints(CheckpointStore& store,
                                                               const std::string& job) {
  absl::StatusOr<std::vector<StoredCheckpoint>> all = ListCheckpoints(store, job);
  if (!all.ok()) return all.status();
  std::vector<StoredCheckpoint> whole;
  for (StoredCheckpoint& found : *all) {
    const absl::Status there =
        CheckCheckpoint(store, JoinPath(job, found.within_job), found.steps_done);
    if (there.ok()) whole.push_back(std::move(found));
    if (!there.ok() && !MeansDamage(there)) return there;
  }
  return whole;
}

}  // namespace

std::string CheckpointWithinJob(const std::string& directory) {
  // Normalized, as a worker could report a path with "..".
  const std::filesystem::path path = std::filesystem::path(directory).lexically_normal();
  return (path.parent_path().filename() / path.filename()).string();
}

absl::StatusOr<std::vector<StoredCheckpoint>> ListCheckpoints(CheckpointStore& store,
                                                              const std::string& job) {
  const absl::StatusOr<std::vector<ObjectReader::Object>> objects = store.List(job);
  if (!objects.ok()) return objects.status();
  std::vector<StoredCheckpoint> found;
  for (const ObjectReader::Object& object : *objects) {
    const std::vector<std::string> parts = absl::StrSplit(object.name, '/');
    if (parts.size() != 4 || parts[3] != kManifestFile) continue;
    const std::string within_job = JoinPath(parts[1], parts[2]);
    const absl::StatusOr<Manifest> manifest = ReadManifest(store, JoinPath(job, within_job));
    if (manifest.ok()) found.push_back({within_job, manifest->steps_done});
    if (absl::IsUnavailable(manifest.status())) return manifest.status();
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.steps_done > b.steps_done; });
  return found;
}

absl::StatusOr<StoredCheckpoint> FindCheckpoint(CheckpointStore& store, const std::string& job,
                                                int64_t steps_done) {
  const absl::StatusOr<std::vector<StoredCheckpoint>> whole = WholeCheckpoints(store, job);
  if (!whole.ok()) return whole.status();
  for (const StoredCheckpoint& found : *whole) {
    if (found.steps_done == steps_done) return found;
  }
  return StoredCheckpoint();
}

absl::StatusOr<StoredCheckpoint> FindCheckpointBefore(CheckpointStore& store,
                                                      const std::string& job, int64_t steps_done) {
  const absl::StatusOr<std::vector<StoredCheckpoint>> whole = WholeCheckpoints(store, job);
  if (!whole.ok()) return whole.status();
  for (const StoredCheckpoint& found : *whole) {
    if (found.steps_done < steps_done) return found;
  }
  return StoredCheckpoint();
}

absl::StatusOr<StoredCheckpoint> ReplaceCheckpoint(CheckpointStore& store, const std::string& job,
                                                   const StoredCheckpoint& damaged) {
  const std::string manifest = JoinPath(JoinPath(job, damaged.within_job), kManifestFile);
  // It may be what is missing.
  const absl::StatusOr<std::string> text = ReadObject(store, manifest, kMaxManifestBytes);
  if (text.ok()) {
    absl::Status moved = store.PutIfAbsent(absl::StrCat(manifest, ".damaged"), *text);
    if (moved.ok() || absl::IsAlreadyExists(moved)) moved = store.Delete(manifest);
    if (!moved.ok()) {
      spdlog::warn("the damaged checkpoint {} of {} keeps its manifest: {}", damaged.within_job,
                   job, moved.ToString());
    }
  }
  const absl::StatusOr<std::vector<StoredCheckpoint>> whole = WholeCheckpoints(store, job);
  if (!whole.ok()) return whole.status();
  StoredCheckpoint later;
  for (const StoredCheckpoint& other : *whole) {
    if (other.within_job == damaged.within_job) continue;
    if (other.steps_done <= damaged.steps_done) return other;
    later = other;
  }
  return later;
}

absl::Status CheckCheckpoint(CheckpointStore& store, const std::string& folder,
                             int64_t steps_done) {
  absl::StatusOr<Manifest> manifest = ReadManifest(store, folder);
  if (!manifest.ok()) return manifest.status();
  if (manifest->steps_done != steps_done) {
    return absl::DataLossError(absl::StrCat("'", folder, "' is of step ", manifest->steps_done,
                                            ", the job's record says ", steps_done));
  }
  return CheckShardSizes(store, folder, *manifest);
}

absl::Status VerifyCheckpoint(CheckpointStore& store, const std::string& folder, int64_t steps_done,
                              const std::function<bool()>& stopped) {
  if (absl::Status s = CheckCheckpoint(store, folder, steps_done); !s.ok()) return s;
  absl::StatusOr<std::unique_ptr<CheckpointReader>> reader = CheckpointReader::Open(store, folder);
  return reader.ok() ? (*reader)->VerifyAll(stopped) : reader.status();
}

bool MeansDamage(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsNotFound(status) || absl::IsOutOfRange(status) ||
         absl::IsInvalidArgument(status);
}

std::string AttemptFolder(int32_t attempt) { return absl::StrCat("attempt-", attempt); }

void RemoveCheckpoints(CheckpointStore& store, const std::string& job, int32_t attempts,
                       const std::string& keep, int64_t best_steps) {
  std::vector<std::string> stay = AlwaysStay(job, attempts);
  if (!keep.empty()) {
    const absl::StatusOr<Manifest> manifest = ReadManifest(store, JoinPath(job, keep));
    const absl::StatusOr<std::vector<StoredCheckpoint>> all = ListCheckpoints(store, job);
    if (!manifest.ok() || !all.ok()) {
      spdlog::warn("the checkpoint {} of {} cannot be read: {}; nothing is removed", keep, job,
                   (manifest.ok() ? all.status() : manifest.status()).ToString());
      return;
    }
    stay.push_back(JoinPath(job, keep));
    bool spare = false;
    for (const StoredCheckpoint& other : *all) {
      if (other.steps_done >= manifest->steps_done) continue;
      if (!spare || other.steps_done == best_steps) stay.push_back(JoinPath(job, other.within_job));
      spare = true;
    }
  }
  if (const absl::Status removed = store.DeleteExcept(job, stay); !removed.ok()) {
    spdlog::warn("old checkpoints of {} stay: {}", job, removed.ToString());
  }
}

void RemoveUnrecorded(CheckpointStore& store, const std::string& job, int32_t attempts,
                      int64_t steps_done) {
  const absl::StatusOr<StoredCheckpoints> stored = ListStoredCheckpoints(store, job);
  absl::Status status = stored.status();
  std::vector<std::string> stay = AlwaysStay(job, attempts);
  bool there = steps_done == 0;
  if (status.ok()) {
    std::set<int32_t> used;  // attempts
    for (const StoredCheckpoints::Checkpoint& checkpoint : stored->checkpoints) {
      if (checkpoint.steps_done > steps_done) continue;
      there = there || checkpoint.steps_done == steps_done;
      stay.push_back(JoinPath(job, checkpoint.directory));
      used.insert(AttemptOf(checkpoint.directory));
    }
    for (const std::string& shared : stored->shared) {
      if (used.contains(AttemptOf(shared))) stay.push_back(JoinPath(job, shared));
    }
    if (!there) status = absl::NotFoundError("its last checkpoint is not there");
  }
  if (status.ok()) status = store.DeleteExcept(job, stay);
  if (!status.ok()) spdlog::warn("all checkpoints of {} stay: {}", job, status.ToString());
}

absl::Status RemoveCheckpoint(CheckpointStore& store, const std::string& folder) {
  absl::Status status = store.Delete(JoinPath(folder, kManifestFile));
  return status.ok() ? store.Delete(folder) : status;
}

void RemoveOlderCheckpoints(CheckpointStore& store, const std::string& job,
                            const StoredCheckpoint& newest, const std::string& spare,
                            int64_t best_steps) {
  const absl::StatusOr<std::vector<StoredCheckpoint>> all = ListCheckpoints(store, job);
  absl::Status status = all.status();
  for (size_t i = 0; status.ok() && i < all->size(); ++i) {
    const StoredCheckpoint& other = (*all)[i];
    if (other.steps_done >= newest.steps_done || other.within_job == spare) continue;
    if (other.steps_done == best_steps) continue;
    status = store.Delete(JoinPath(job, other.within_job));
  }
  if (!status.ok()) spdlog::warn("old checkpoints of {} stay: {}", job, status.ToString());
}

}  // namespace espalier
