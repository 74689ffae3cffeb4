#include "server/jobs/checkpoint_folders.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/sha256.h"
#include "server/recordings/stored_checkpoints.h"
#include "storage/checkpoint.h"
#include "storage/manifest.h"

namespace espalier {
namespace {

// More than another coordinator begins while this one still removes.
constexpr int32_t kLaterAttempts = 64;
constexpr int64_t kHashedBlock = 1 << 20;

// What stays of a job, whatever its checkpoints.
std::vector<std::string> AlwaysStay(const std::string& job, int32_t attempts) {
  std::vector<std::string> stay = {JoinPath(job, kStreamFolder), JoinPath(job, kFetchedFolder)};
  for (int32_t later = 1; later <= kLaterAttempts; ++later) {
    stay.push_back(JoinPath(job, AttemptFolder(attempts + later)));
  }
  return stay;
}

// Of the files that checkpoints share, those of these attempts.
std::vector<std::string> SharedBy(const std::set<int32_t>& attempts, const std::string& job,
                                  const StoredCheckpoints& stored) {
  std::vector<std::string> shared;
  for (const std::string& file : stored.shared) {
    if (attempts.contains(AttemptOf(file))) shared.push_back(JoinPath(job, file));
  }
  return shared;
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

// Makes it no checkpoint any more.
void MoveManifest(CheckpointStore& store, const std::string& job, const std::string& within_job) {
  const std::string manifest = JoinPath(JoinPath(job, within_job), kManifestFile);
  const absl::StatusOr<std::string> text = ReadObject(store, manifest, kMaxManifestBytes);
  if (!text.ok()) return;  // it may be what is missing
  absl::Status moved = store.PutIfAbsent(absl::StrCat(manifest, ".damaged"), *text);
  if (moved.ok() || absl::IsAlreadyExists(moved)) moved = store.Delete(manifest);
  if (!moved.ok()) {
    spdlog::warn("the damaged checkpoint {} of {} keeps its manifest: {}", within_job, job,
                 moved.ToString());
  }
}

// Whether the file has another content than a manifest says.
absl::StatusOr<bool> IsDamaged(CheckpointStore& store, const std::string& name,
                               const ManifestFile& expected) {
  const absl::StatusOr<std::unique_ptr<ReadableFile>> file = store.Open(name);
  absl::Status status = file.status();
  Sha256 hash;
  std::string block;
  for (int64_t at = 0; status.ok() && at < (*file)->size(); at += kHashedBlock) {
    block.resize(static_cast<size_t>(std::min(kHashedBlock, (*file)->size() - at)));
    status = (*file)->Read(at, static_cast<int64_t>(block.size()), block.data());
    hash.Add(block);
  }
  if (!status.ok()) return MeansDamage(status) ? absl::StatusOr<bool>(true) : status;
  return hash.Hex() != expected.sha256;
}

// The checkpoints that cannot be read because `damaged` is, as they have damaged files in common;
// also itself.
absl::StatusOr<std::set<std::string>> DamagedWith(CheckpointStore& store, const std::string& job,
                                                  const std::string& damaged) {
  std::set<std::string> all = {damaged};
  const absl::StatusOr<Manifest> manifest = ReadManifest(store, JoinPath(job, damaged));
  if (absl::IsUnavailable(manifest.status())) return manifest.status();
  if (!manifest.ok()) return all;
  std::set<std::pair<std::string, std::string>> files;  // with the hash that they do not have
  for (const ManifestFile& file : manifest->files) {
    if (!file.shared) continue;
    const std::string name = PathOf(JoinPath(job, damaged), file);
    const absl::StatusOr<bool> is_damaged = IsDamaged(store, name, file);
    if (!is_damaged.ok()) return is_damaged.status();
    if (*is_damaged) files.emplace(name, file.sha256);
  }
  if (files.empty()) return all;
  const absl::StatusOr<std::vector<StoredCheckpoint>> listed = ListCheckpoints(store, job);
  if (!listed.ok()) return listed.status();
  for (const StoredCheckpoint& other : *listed) {
    const std::string folder = JoinPath(job, other.within_job);
    const absl::StatusOr<Manifest> found = ReadManifest(store, folder);
    if (!found.ok()) continue;
    for (const ManifestFile& file : found->files) {
      if (files.contains({PathOf(folder, file), file.sha256})) all.insert(other.within_job);
    }
  }
  return all;
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
  const absl::StatusOr<std::set<std::string>> gone = DamagedWith(store, job, damaged.within_job);
  if (!gone.ok()) return gone.status();
  for (const std::string& within_job : *gone) MoveManifest(store, job, within_job);
  const absl::StatusOr<std::vector<StoredCheckpoint>> whole = WholeCheckpoints(store, job);
  if (!whole.ok()) return whole.status();
  StoredCheckpoint later;
  for (const StoredCheckpoint& other : *whole) {
    if (gone->contains(other.within_job)) continue;
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
    const absl::StatusOr<StoredCheckpoints> stored = ListStoredCheckpoints(store, job);
    absl::Status status = manifest.status();
    if (status.ok()) status = all.status();
    if (status.ok()) status = stored.status();
    if (!status.ok()) {
      spdlog::warn("the checkpoint {} of {} cannot be read: {}; nothing is removed", keep, job,
                   status.ToString());
      return;
    }
    std::vector<std::string> kept = {keep};
    bool spare = false;
    for (const StoredCheckpoint& other : *all) {
      if (other.steps_done >= manifest->steps_done) continue;
      if (!spare || other.steps_done == best_steps) kept.push_back(other.within_job);
      spare = true;
    }
    std::set<int32_t> used;  // attempts
    for (const std::string& within_job : kept) {
      stay.push_back(JoinPath(job, within_job));
      used.insert(AttemptOf(within_job));
    }
    for (std::string& shared : SharedBy(used, job, *stored)) stay.push_back(std::move(shared));
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
    for (std::string& shared : SharedBy(used, job, *stored)) stay.push_back(std::move(shared));
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
  const int32_t attempt = AttemptOf(newest.within_job);
  bool earlier = false;  // checkpoints of earlier attempts were removed
  for (size_t i = 0; status.ok() && i < all->size(); ++i) {
    const StoredCheckpoint& other = (*all)[i];
    if (other.steps_done >= newest.steps_done || other.within_job == spare) continue;
    if (other.steps_done == best_steps) continue;
    status = store.Delete(JoinPath(job, other.within_job));
    earlier = earlier || AttemptOf(other.within_job) < attempt;
  }
  if (status.ok() && earlier) status = RemoveUnusedShared(store, job, attempt).status();
  if (!status.ok()) spdlog::warn("old checkpoints of {} stay: {}", job, status.ToString());
}

absl::StatusOr<int64_t> RemoveUnusedShared(CheckpointStore& store, const std::string& job,
                                           int32_t before) {
  const absl::StatusOr<StoredCheckpoints> stored = ListStoredCheckpoints(store, job);
  if (!stored.ok()) return stored.status();
  bool removed = false;
  for (const std::string& file : stored->unused_shared()) {
    if (AttemptOf(file) >= before) continue;
    if (absl::Status s = store.Delete(JoinPath(job, file)); !s.ok()) return s;
    removed = true;
  }
  if (!removed) return stored->shared_bytes;
  const absl::StatusOr<StoredCheckpoints> left = ListStoredCheckpoints(store, job);
  return left.ok() ? absl::StatusOr<int64_t>(left->shared_bytes) : left.status();
}

}  // namespace espalier
