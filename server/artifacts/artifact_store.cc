#include "server/artifacts/artifact_store.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/artifacts/artifact_files.h"
#include "server/artifacts/artifact_names.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

constexpr char kIncoming[] = "incoming";
constexpr char kData[] = "data";
constexpr char kDeleted[] = "deleted";
constexpr char kOrphaned[] = "orphaned";

}  // namespace

ArtifactFolder::Files::~Files() {
  if (!deleted) return;
  RemoveTree(path);
  RemoveTree(mark);
}

absl::StatusOr<std::unique_ptr<ArtifactStore>> ArtifactStore::Open(const std::string& root,
                                                                   FileSystem* files,
                                                                   JobStore* store,
                                                                   const Clock* clock,
                                                                   ArtifactLimits limits) {
  auto artifacts =
      std::unique_ptr<ArtifactStore>(new ArtifactStore(root, files, store, clock, limits));
  absl::Status status = artifacts->Load();
  if (!status.ok()) return status;
  return artifacts;
}

ArtifactFolder ArtifactStore::FolderAt(const std::string& name) const {
  return ArtifactFolder(std::make_shared<ArtifactFolder::Files>(
      fs::absolute(fs::path(root_) / kData / name).string(),
      fs::absolute(fs::path(root_) / kDeleted / name).string()));
}

void ArtifactStore::MarkDeleted(const ArtifactFolder& folder) {
  folder.files_->deleted = true;
  // If the mark cannot be written, the folder is an orphan after a crash: kept, but unused.
  absl::StatusOr<std::unique_ptr<WritableFile>> mark = files_->Create(folder.files_->mark);
  if (mark.ok()) (*mark)->Close().IgnoreError();
}

absl::Status ArtifactStore::Load() {
  RemoveTree(JoinPath(root_, kIncoming));
  std::map<std::string, std::set<std::string>> there;
  for (const char* folder : {kIncoming, kData, kDeleted, kOrphaned}) {
    absl::Status status = files_->CreateDirectories(JoinPath(root_, folder));
    if (!status.ok()) return status;
    absl::StatusOr<std::vector<std::string>> names = files_->List(JoinPath(root_, folder));
    if (!names.ok()) return names.status();
    there[folder] = {names->begin(), names->end()};
  }
  absl::StatusOr<std::vector<ArtifactRecord>> records = store_->Artifacts();
  if (!records.ok()) return records.status();
  absl::MutexLock lock(&mutex_);
  for (ArtifactRecord& record : *records) {
    if (there[kData].erase(record.folder) == 0 && there[kOrphaned].count(record.folder) > 0) {
      // An earlier store had no row for it, and this one does.
      absl::Status status = Move(record.folder, kOrphaned, kData);
      if (!status.ok()) return status;
      spdlog::info("artifact {} is back from {}", record.artifact.name(), kOrphaned);
    }
    entries_.insert_or_assign(record.artifact.name(),
                              Entry{record.artifact, FolderAt(record.folder)});
  }
  for (const char* place : {kData, kOrphaned}) {
    for (const std::string& folder : there[place]) ReserveNumber(folder);
  }
  for (const auto& [name, entry] : entries_) {
    ReserveNumber(fs::path(entry.folder.path()).filename().string());
  }
  bool orphans = false;
  for (const std::string& folder : there[kData]) {
    if (there[kDeleted].count(folder) > 0) {
      RemoveTree(JoinPath(JoinPath(root_, kData), folder));
      continue;
    }
    absl::Status status = Move(folder, kData, kOrphaned);
    orphans = orphans || status.ok();
    spdlog::warn("artifacts: the job store has no {}, {}", folder,
                 status.ok() ? "which is moved aside" : status.ToString());
  }
  if (orphans) {
    spdlog::warn(
        "artifacts: what the job store does not know is kept in {}; if it ought to know it, "
        "restore the job store from a backup and start again, which takes back what it lists, or "
        "upload them again with `espalier models upload`; otherwise remove them",
        JoinPath(root_, kOrphaned));
  }
  for (const std::string& mark : there[kDeleted]) {
    RemoveTree(JoinPath(JoinPath(root_, kDeleted), mark));
  }
  return absl::OkStatus();
}

absl::Status ArtifactStore::Move(const std::string& folder, const char* from, const char* to) {
  const std::string source = JoinPath(root_, from), target = JoinPath(root_, to);
  absl::Status status = files_->Rename(JoinPath(source, folder), JoinPath(target, folder));
  if (status.ok()) status = files_->SyncDirectory(target);
  if (status.ok()) status = files_->SyncDirectory(source);
  return status;
}

void ArtifactStore::ReserveNumber(const std::string& folder) {
  int64_t number = 0;
  const size_t at = folder.rfind('@');
  if (at != std::string::npos && absl::SimpleAtoi(folder.substr(at + 1), &number)) {
    next_folder_ = std::max(next_folder_, number + 1);
  }
}

absl::StatusOr<v1::Artifact> ArtifactStore::Find(const std::string& name) const {
  absl::Status status = CheckArtifactName(name);
  if (!status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  auto it = entries_.find(name);
  if (it == entries_.end()) {
    return absl::NotFoundError(absl::StrCat("there is no artifact '", name,
                                            "'; `espalier models` lists those that there are"));
  }
  return it->second.artifact;
}

absl::StatusOr<std::string> ArtifactStore::Folder(const std::string& name) const {
  const absl::StatusOr<ArtifactFolder> folder = Pin(name);
  if (!folder.ok()) return folder.status();
  return folder->path();
}

absl::StatusOr<ArtifactFolder> ArtifactStore::Pin(const std::string& name) const {
  absl::StatusOr<v1::Artifact> artifact = Find(name);
  if (!artifact.ok()) return artifact.status();
  absl::MutexLock lock(&mutex_);
  auto it = entries_.find(name);
  if (it == entries_.end()) {
    return absl::NotFoundError(absl::StrCat("artifact '", name, "' was deleted just now"));
  }
  return it->second.folder;
}

absl::StatusOr<std::string> ArtifactStore::SingleFile(const std::string& name) const {
  absl::StatusOr<v1::Artifact> artifact = Find(name);
  if (!artifact.ok()) return artifact.status();
  if (artifact->files_size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat("artifact '", name, "' has ",
                                                   artifact->files_size(),
                                                   " files; one of a single file is wanted here"));
  }
  absl::StatusOr<std::string> folder = Folder(name);
  if (!folder.ok()) return folder.status();
  return JoinPath(*folder, artifact->files(0));
}

std::vector<v1::Artifact> ArtifactStore::List() const {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::Artifact> artifacts;
  for (const auto& [name, entry] : entries_) artifacts.push_back(entry.artifact);
  return artifacts;
}

absl::StatusOr<std::string> ArtifactStore::MakeStagingFolder() {
  int64_t number;
  {
    absl::MutexLock lock(&mutex_);
    number = next_folder_++;
  }
  const std::string folder =
      fs::absolute(fs::path(root_) / kIncoming / std::to_string(number)).string();
  absl::Status status = files_->CreateDirectories(folder);
  if (!status.ok()) return status;
  return folder;
}

absl::StatusOr<std::unique_ptr<ArtifactUpload>> ArtifactStore::Begin(
    const std::string& name, v1::Artifact::Kind kind, bool replace,
    std::map<std::string, std::string> metadata) {
  absl::Status status = CheckArtifactName(name);
  if (!status.ok()) return status;
  if (kind == v1::Artifact::KIND_UNSPECIFIED || !v1::Artifact::Kind_IsValid(kind)) {
    return absl::InvalidArgumentError(
        absl::StrCat("artifact '", name, "': kind must be DATASET, ONNX or MODEL"));
  }
  if (!replace && Find(name).ok()) {
    return absl::AlreadyExistsError(
        absl::StrCat("artifact '", name, "' exists; set replace, or choose another name"));
  }
  absl::StatusOr<std::string> staging = MakeStagingFolder();
  if (!staging.ok()) return staging.status();
  auto upload = std::unique_ptr<ArtifactUpload>(new ArtifactUpload());
  upload->store_ = this;
  upload->replace_ = replace;
  upload->staging_ = *staging;
  upload->artifact_.set_name(name);
  upload->artifact_.set_kind(kind);
  for (const auto& [key, value] : metadata) (*upload->artifact_.mutable_metadata())[key] = value;
  return upload;
}

std::unique_ptr<ArtifactUpload> ArtifactStore::BeginRetry(const std::string& name) {
  auto upload = std::unique_ptr<ArtifactUpload>(new ArtifactUpload());
  upload->store_ = this;
  upload->artifact_.set_name(name);
  return upload;
}

absl::StatusOr<v1::Artifact> ArtifactStore::RegisterStaged(
    const std::string& staging_folder, const std::string& name, v1::Artifact::Kind kind,
    std::map<std::string, std::string> metadata, bool replace,
    const IdempotencyRecordFactory& make_idempotency_record,
    const std::function<absl::Status()>& go_on) {
  absl::Status status = CheckArtifactName(name);
  if (!status.ok()) return status;
  absl::StatusOr<std::vector<std::string>> files = FilesBeneath(staging_folder);
  if (!files.ok()) return files.status();
  v1::Artifact artifact;
  artifact.set_name(name);
  artifact.set_kind(kind);
  for (const auto& [key, value] : metadata) (*artifact.mutable_metadata())[key] = value;
  std::map<std::string, std::string> sums;
  int64_t total = 0;
  for (const std::string& file : *files) {
    int64_t bytes = 0;
    absl::StatusOr<std::string> sum = SumOfFile(*files_, JoinPath(staging_folder, file), &bytes);
    if (!sum.ok()) return sum.status();
    sums[file] = *sum;
    total += bytes;
    artifact.add_files(file);
  }
  artifact.set_bytes(total);
  artifact.set_sha256(SumOf(sums));
  artifact.set_created_unix_ms(clock_->NowUnixMillis());
  IdempotencyRecord idempotency_record;
  if (make_idempotency_record != nullptr) idempotency_record = make_idempotency_record(artifact);
  if (go_on != nullptr) status = go_on();
  if (!status.ok()) return status;
  v1::Artifact installed;
  status = Install(staging_folder, artifact, replace,
                   make_idempotency_record != nullptr ? &idempotency_record : nullptr, &installed);
  if (!status.ok()) return status;
  return installed;
}

absl::Status ArtifactStore::Install(const std::string& staging, v1::Artifact artifact, bool replace,
                                    const IdempotencyRecord* idempotency_record,
                                    v1::Artifact* installed) {
  absl::Status status = SyncFolders(*files_, staging);
  if (!status.ok()) return status;
  std::optional<Entry> replaced;  // its files are removed without the lock
  absl::MutexLock lock(&mutex_);
  auto old = entries_.find(artifact.name());
  if (old != entries_.end() && !replace) {
    return absl::AlreadyExistsError(
        absl::StrCat("artifact '", artifact.name(), "' was made meanwhile by another upload"));
  }
  const std::string folder = absl::StrCat(artifact.name(), "@", next_folder_++);
  const std::string data = JoinPath(root_, kData);
  status = files_->Rename(staging, JoinPath(data, folder));
  if (status.ok()) status = files_->SyncDirectory(data);
  if (status.ok()) status = store_->PutArtifact({artifact, folder}, idempotency_record);
  if (!status.ok()) {
    RemoveTree(JoinPath(data, folder));
    return status;
  }
  if (old != entries_.end()) {
    MarkDeleted(old->second.folder);
    replaced = std::move(old->second);
    entries_.erase(old);
  }
  entries_.emplace(artifact.name(), Entry{artifact, FolderAt(folder)});
  *installed = std::move(artifact);
  return absl::OkStatus();
}

absl::Status ArtifactStore::Delete(const std::string& name,
                                   const IdempotencyRecord* idempotency_record) {
  absl::StatusOr<v1::Artifact> artifact = Find(name);
  if (!artifact.ok()) return artifact.status();
  std::optional<Entry> deleted;  // its files are removed without the lock
  absl::MutexLock lock(&mutex_);
  auto it = entries_.find(name);
  if (it == entries_.end()) return absl::OkStatus();
  absl::Status status = store_->DeleteArtifact(name, idempotency_record);
  if (!status.ok()) return status;
  MarkDeleted(it->second.folder);
  deleted = std::move(it->second);
  entries_.erase(it);
  return absl::OkStatus();
}

}  // namespace espalier
