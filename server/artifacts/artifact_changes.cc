// How ArtifactStore installs and deletes artifacts.
#include <algorithm>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/artifacts/artifact_files.h"
#include "server/artifacts/artifact_names.h"
#include "server/artifacts/artifact_store.h"

namespace espalier {
namespace {

// The number of an artifact's last version.
constexpr char kVersionBlob[] = "artifact-version/";
// Runs that an error names.
constexpr size_t kRunsNamed = 5;

}  // namespace

absl::StatusOr<std::string> ArtifactStore::RowOfVersion(const v1::Artifact& artifact) {
  const std::map<int64_t, std::string> versions = Versions(artifact.name());
  const auto job = artifact.metadata().find("job");
  for (const auto& [number, row] : versions) {
    const auto& metadata = entries_.at(row).artifact.metadata();
    const auto other = metadata.find("job");
    if (job != artifact.metadata().end() && other != metadata.end() &&
        other->second == job->second) {
      return row;
    }
  }
  // Numbers are not used twice, as records may name deleted versions.
  const std::string counter = absl::StrCat(kVersionBlob, artifact.name());
  int64_t last = versions.empty() ? 0 : versions.rbegin()->first;
  absl::StatusOr<std::string> stored = store_->GetBlob(counter);
  if (!stored.ok() && !absl::IsNotFound(stored.status())) return stored.status();
  int64_t known = 0;
  if (stored.ok() && absl::SimpleAtoi(*stored, &known)) last = std::max(last, known);
  if (last == 0) return artifact.name();
  if (absl::Status status = store_->PutBlob(counter, absl::StrCat(last + 1)); !status.ok()) {
    return status;
  }
  return absl::StrCat(artifact.name(), "@", last + 1);
}

std::vector<ArtifactUse> ArtifactStore::Uses() const {
  std::vector<ArtifactUse> all;
  for (const auto& user : users_) {
    for (ArtifactUse& use : user()) all.push_back(std::move(use));
  }
  return all;
}

absl::Status ArtifactStore::CheckUnused(const std::string& row,
                                        const std::vector<ArtifactUse>& uses) const {
  for (const ArtifactUse& use : uses) {
    if (use.replays) continue;
    absl::StatusOr<ArtifactReference> reference = ParseArtifactReference(use.artifact);
    if (!reference.ok() || RowOf(*reference) != row) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("artifact '", use.artifact, "' is needed by ", use.user, "; ", use.remedy));
  }
  return absl::OkStatus();
}

absl::Status ArtifactStore::CheckNotReplayed(const std::string& name, const std::string& row,
                                             const std::vector<ArtifactUse>& uses,
                                             const ArtifactRemoval& how,
                                             const std::string& remedy) const {
  std::vector<std::string> named;
  size_t runs = 0;
  for (const ArtifactUse& use : uses) {
    if (!use.replays) continue;
    const absl::StatusOr<ArtifactReference> reference = ParseArtifactReference(use.artifact);
    if (!reference.ok() || RowOf(*reference) != row) continue;
    ++runs;
    const bool seen = how.may_see == nullptr || how.may_see(use.owner);
    if (seen && named.size() < kRunsNamed) named.push_back(use.user);
  }
  if (runs == 0 || how.force) return absl::OkStatus();
  std::string all = absl::StrJoin(named, ", ");
  if (const size_t others = runs - named.size(); others > 0) {
    absl::StrAppend(&all, named.empty() ? "" : " and ", others, named.empty() ? "" : " more",
                    others == 1 ? " recorded run" : " recorded runs");
  }
  return absl::FailedPreconditionError(
      absl::StrCat("artifact '", name, "' is needed to replay ", all,
                   "; delete these runs first (espalier jobs delete JOB), or ", remedy));
}

absl::StatusOr<v1::Artifact> ArtifactStore::Install(
    const std::string& staging, v1::Artifact artifact, IfExists if_exists,
    const ArtifactRemoval& how, const IdempotencyRecordFactory& make_idempotency_record,
    const std::function<absl::Status()>& go_on) {
  IdempotencyRecord record;
  if (make_idempotency_record != nullptr) record = make_idempotency_record(artifact);
  absl::Status status = go_on != nullptr ? go_on() : absl::OkStatus();
  if (status.ok()) status = SyncFolders(*files_, staging);
  if (!status.ok()) return status;
  const auto uses = [&] {
    return if_exists == IfExists::kReplace ? Uses() : std::vector<ArtifactUse>();
  };
  std::string folder;
  if (objects_ != nullptr) {
    {
      // Rather now than once everything is stored.
      const std::vector<ArtifactUse> now = uses();
      v1::Artifact checked = artifact;
      absl::MutexLock lock(&mutex_);
      status = CheckInstall(&checked, if_exists, how, now).status();
      if (!status.ok()) return status;
    }
    absl::StatusOr<std::string> stored = objects_->Upload(artifact, staging, go_on);
    if (!stored.ok()) return stored.status();
    folder = *std::move(stored);
  }
  absl::StatusOr<v1::Artifact> installed =
      InstallStored(staging, std::move(artifact), if_exists, how, folder, uses(),
                    make_idempotency_record != nullptr ? &record : nullptr);
  if (!installed.ok() && objects_ != nullptr) objects_->Remove(folder);
  return installed;
}

absl::StatusOr<std::string> ArtifactStore::CheckInstall(
    v1::Artifact* artifact, IfExists if_exists, const ArtifactRemoval& how,
    const std::vector<ArtifactUse>& uses) const {
  const absl::StatusOr<ArtifactReference> reference = ParseArtifactReference(artifact->name());
  if (!reference.ok()) return reference.status();
  // Also if the caller was checked when the upload began: the name may be another's by now.
  if (const std::optional<std::string> owner = OwnerOfRows(reference->name);
      owner.has_value() && *owner != artifact->owner()) {
    if (!artifact->owner().empty()) {
      return absl::AlreadyExistsError(absl::StrCat("artifact '", artifact->name(),
                                                   "' is another owner's; choose another name"));
    }
    artifact->set_owner(*owner);
  }
  const std::string row = RowOf(*reference);
  if (!row.empty() && if_exists == IfExists::kRefuse) {
    return absl::AlreadyExistsError(
        absl::StrCat("artifact '", artifact->name(), "' was made meanwhile by another upload"));
  }
  if (if_exists == IfExists::kAddVersion) return std::string();
  if (row.empty()) return reference->name;
  if (if_exists == IfExists::kReplace) {
    if (absl::Status s = CheckUnused(row, uses); !s.ok()) return s;
    const v1::Artifact& former = entries_.at(row).artifact;
    const bool same = former.sha256() == artifact->sha256() &&
                      std::equal(former.files().begin(), former.files().end(),
                                 artifact->files().begin(), artifact->files().end());
    if (!same) {
      absl::Status s = CheckNotReplayed(
          artifact->name(), row, uses, how,
          "choose another name, or replace it all the same, with --force beside --replace (the "
          "request's field 'force'), and they cannot be replayed");
      if (!s.ok()) return s;
    }
  }
  return row;
}

absl::StatusOr<v1::Artifact> ArtifactStore::InstallStored(
    const std::string& staging, v1::Artifact artifact, IfExists if_exists,
    const ArtifactRemoval& how, const std::string& objects_folder,
    const std::vector<ArtifactUse>& uses, const IdempotencyRecord* idempotency_record) {
  std::optional<Entry> replaced;  // its files are removed without the lock
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<std::string> row = CheckInstall(&artifact, if_exists, how, uses);
  if (row.ok() && if_exists == IfExists::kAddVersion) row = RowOfVersion(artifact);
  if (!row.ok()) return row.status();
  artifact.set_name(*row);
  auto old = entries_.find(*row);
  const std::string folder =
      objects_ != nullptr ? objects_folder : absl::StrCat(FolderNameOf(*row), "@", next_folder_++);
  const std::string data = JoinPath(root_, kData);
  absl::Status status = files_->Rename(staging, JoinPath(data, folder));
  if (status.ok()) status = files_->SyncDirectory(data);
  if (status.ok() && objects_ != nullptr && old != entries_.end()) {
    status = objects_->Note(NameOf(old->second.folder));
  }
  if (status.ok()) status = store_->PutArtifact({artifact, folder}, idempotency_record);
  if (!status.ok()) {
    RemoveTree(JoinPath(data, folder));
    if (objects_ != nullptr && old != entries_.end()) objects_->Keep(NameOf(old->second.folder));
    return status;
  }
  if (objects_ != nullptr) objects_->Keep(folder);
  if (old != entries_.end()) {
    MarkDeleted(old->second.folder);
    if (objects_ != nullptr) objects_->Remove(NameOf(old->second.folder));
    replaced = std::move(old->second);
    entries_.erase(old);
  }
  entries_.emplace(*row, Entry{artifact, FolderAt(folder)});
  return artifact;
}

absl::Status ArtifactStore::Delete(const std::string& name,
                                   const IdempotencyRecord* idempotency_record,
                                   const ArtifactRemoval& how) {
  absl::StatusOr<ArtifactReference> reference = ParseArtifactReference(name);
  if (!reference.ok()) return reference.status();
  const std::vector<ArtifactUse> uses = Uses();
  std::optional<Entry> deleted;  // its files are removed without the lock
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<const Entry*> entry = Locate(name);
  if (!entry.ok()) return entry.status();
  const std::map<int64_t, std::string> versions = Versions(reference->name);
  if (reference->version == 0 && versions.size() > 1) {
    std::vector<std::string> names;
    for (const auto& [number, row] : versions) {
      names.push_back(absl::StrCat(reference->name, "@", number));
    }
    return absl::FailedPreconditionError(absl::StrCat("artifact '", name, "' has ", versions.size(),
                                                      " versions: ", absl::StrJoin(names, ", "),
                                                      "; name the one to delete"));
  }
  const std::string row = RowOf(*reference);
  absl::Status unused = CheckUnused(row, uses);
  if (unused.ok()) {
    unused = CheckNotReplayed(name, row, uses, how,
                              absl::StrCat("delete it all the same, and they cannot be replayed: "
                                           "espalier models delete --force ",
                                           name));
  }
  if (!unused.ok()) return unused;
  const auto it = entries_.find(row);
  const std::string folder = NameOf(it->second.folder);
  absl::Status status = objects_ != nullptr ? objects_->Note(folder) : absl::OkStatus();
  if (status.ok()) status = store_->DeleteArtifact(row, idempotency_record);
  if (!status.ok()) {
    if (objects_ != nullptr) objects_->Keep(folder);
    return status;
  }
  MarkDeleted(it->second.folder);
  if (objects_ != nullptr) objects_->Remove(folder);
  deleted = std::move(it->second);
  entries_.erase(it);
  return absl::OkStatus();
}

}  // namespace espalier
