// ArtifactStore with a store of objects.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/artifacts/artifact_files.h"
#include "server/artifacts/artifact_store.h"

namespace espalier {

absl::Status ArtifactStore::CheckObjects(const std::vector<ArtifactRecord>& records) const {
  if (objects_ != nullptr) return absl::OkStatus();
  for (const ArtifactRecord& record : records) {
    if (!ArtifactObjects::IsObjectFolder(record.folder)) continue;
    const absl::StatusOr<std::string> url = store_->GetBlob(kArtifactStoreBlob);
    return absl::FailedPreconditionError(absl::StrCat(
        "artifact '", record.artifact.name(), "' is in an object store: give --artifact-store=",
        url.ok() ? *url : "s3://BUCKET/PREFIX", ", as before"));
  }
  return absl::OkStatus();
}

absl::Status ArtifactStore::StartObjects(const std::set<std::string>& there) {
  if (objects_ == nullptr) return absl::OkStatus();
  std::set<std::string> rows;
  for (const auto& [row, entry] : entries_) rows.insert(NameOf(entry.folder));
  if (absl::Status s = objects_->Start(rows); !s.ok()) return s;
  for (auto& [row, entry] : entries_) {
    const std::string name = NameOf(entry.folder);
    const bool here = there.contains(name);
    if (ArtifactObjects::IsObjectFolder(name)) {
      absl::MutexLock lock(&entry.folder.files_->mutex);
      entry.folder.files_->there = here;
      continue;
    }
    if (!here) {
      return absl::FailedPreconditionError(absl::StrCat(
          "artifact '", row, "' is not in ", objects_->url(), " yet, and not in ",
          entry.folder.path(),
          " either: start first, with --artifact-store, the coordinator whose data folder has it, "
          "which stores it there; if it is lost, start one without --artifact-store, and delete "
          "it"));
    }
    if (absl::Status s = MoveToObjects(&entry); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status ArtifactStore::MoveToObjects(Entry* entry) {
  spdlog::info("artifact {} ({} bytes) is stored in {}", entry->artifact.name(),
               entry->artifact.bytes(), objects_->url());
  const absl::StatusOr<std::string> folder =
      objects_->Upload(entry->artifact, entry->folder.path(), /*go_on=*/nullptr);
  if (!folder.ok()) return folder.status();
  absl::Status status = store_->PutArtifact({entry->artifact, *folder}, nullptr);
  if (!status.ok()) {
    objects_->Remove(*folder);
    return status;
  }
  objects_->Keep(*folder);
  const ArtifactFolder stored = FolderAt(*folder);
  status = files_->Rename(entry->folder.path(), stored.path());
  if (status.ok()) status = files_->SyncDirectory(JoinPath(root_, kData));
  if (!status.ok()) return status;
  entry->folder = stored;
  return absl::OkStatus();
}

absl::Status ArtifactStore::Fetch(const v1::Artifact& artifact,
                                  const ArtifactFolder& folder) const {
  ArtifactFolder::Files& files = *folder.files_;
  {
    absl::MutexLock lock(&files.mutex);
    if (files.there) return absl::OkStatus();
    if (files.fetching) {
      const auto ended = [&files, before = files.fetches] {
        files.mutex.AssertReaderHeld();
        return files.fetches != before;
      };
      files.mutex.Await(absl::Condition(&ended));
      return files.last_fetch;
    }
    files.fetching = true;
  }
  const absl::Status status = FetchNow(artifact, files);
  absl::MutexLock lock(&files.mutex);
  files.fetching = false;
  ++files.fetches;
  files.there = status.ok();
  files.last_fetch = status;
  return status;
}

absl::Status ArtifactStore::FetchNow(const v1::Artifact& artifact,
                                     const ArtifactFolder::Files& to) const {
  if (absl::Status there = CheckPresent(); !there.ok()) return there;
  const std::string folder = to.path.substr(to.path.rfind('/') + 1);
  const std::string incoming = JoinPath(JoinPath(root_, kIncoming), folder);
  const absl::Time begin = absl::Now();
  absl::Status status = objects_->Download(artifact, folder, incoming);
  if (status.ok()) status = files_->Rename(incoming, to.path);
  if (status.ok()) status = files_->SyncDirectory(JoinPath(root_, kData));
  if (status.ok()) {
    spdlog::info("artifact {} ({} bytes) fetched from {} in {:.1f} s", artifact.name(),
                 artifact.bytes(), objects_->url(), absl::ToDoubleSeconds(absl::Now() - begin));
    return status;
  }
  RemoveTree(incoming);
  if (to.deleted) return ArtifactNotFound(artifact.name());
  return status;
}

}  // namespace espalier
