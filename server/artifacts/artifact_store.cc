#include "server/artifacts/artifact_store.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/artifacts/artifact_files.h"
#include "server/artifacts/artifact_names.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

constexpr char kDeleted[] = "deleted";
constexpr char kOrphaned[] = "orphaned";

v1::Artifact RecordOf(const NewArtifact& what) {
  v1::Artifact artifact;
  artifact.set_name(what.name);
  artifact.set_kind(what.kind);
  artifact.set_owner(what.owner);
  for (const auto& [key, value] : what.metadata) (*artifact.mutable_metadata())[key] = value;
  return artifact;
}

}  // namespace

absl::Status ArtifactNotFound(const std::string& reference) {
  return absl::NotFoundError(absl::StrCat("there is no artifact '", reference,
                                          "'; `espalier models` lists those that there are"));
}

ArtifactFolder::Files::~Files() {
  if (!deleted) return;
  RemoveTree(path);
  RemoveTree(mark);
}

absl::StatusOr<std::unique_ptr<ArtifactStore>> ArtifactStore::Open(
    const std::string& root, FileSystem* files, JobStore* store, const Clock* clock,
    ArtifactLimits limits, ArtifactObjects* objects) {
  auto artifacts =
      std::unique_ptr<ArtifactStore>(new ArtifactStore(root, files, store, clock, limits, objects));
  absl::Status status = artifacts->Load();
  if (!status.ok()) return status;
  return artifacts;
}

ArtifactFolder ArtifactStore::FolderAt(const std::string& name) const {
  return ArtifactFolder(std::make_shared<ArtifactFolder::Files>(
      fs::absolute(fs::path(root_) / kData / name).string(),
      fs::absolute(fs::path(root_) / kDeleted / name).string()));
}

std::string ArtifactStore::NameOf(const ArtifactFolder& folder) {
  return fs::path(folder.path()).filename().string();
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
  if (absl::Status s = CheckObjects(*records); !s.ok()) return s;
  absl::MutexLock lock(&mutex_);
  const std::set<std::string> data = there[kData];
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
    ReserveNumber(NameOf(entry.folder));
  }
  bool orphans = false;
  for (const std::string& folder : there[kData]) {
    const bool cached = objects_ != nullptr && ArtifactObjects::IsObjectFolder(folder);
    if (there[kDeleted].count(folder) > 0 || cached) {
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
  return StartObjects(data);
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

std::map<int64_t, std::string> ArtifactStore::Versions(const std::string& name) const {
  std::map<int64_t, std::string> versions;
  if (entries_.count(name) > 0) versions[1] = name;
  const std::string prefix = absl::StrCat(name, "@");
  for (auto it = entries_.lower_bound(prefix);
       it != entries_.end() && absl::StartsWith(it->first, prefix); ++it) {
    int64_t number = 0;
    if (absl::SimpleAtoi(it->first.substr(prefix.size()), &number)) versions[number] = it->first;
  }
  return versions;
}

std::string ArtifactStore::RowOf(const ArtifactReference& reference) const {
  const std::map<int64_t, std::string> versions = Versions(reference.name);
  if (versions.empty()) return "";
  if (reference.version == 0) return versions.rbegin()->second;
  const auto named = versions.find(reference.version);
  return named == versions.end() ? "" : named->second;
}

absl::StatusOr<const ArtifactStore::Entry*> ArtifactStore::Locate(
    const std::string& reference) const {
  absl::StatusOr<ArtifactReference> parsed = ParseArtifactReference(reference);
  if (!parsed.ok()) return parsed.status();
  const std::string row = RowOf(*parsed);
  if (!row.empty()) return &entries_.at(row);
  return ArtifactNotFound(reference);
}

std::optional<std::string> ArtifactStore::OwnerOfRows(const std::string& name) const {
  const std::map<int64_t, std::string> versions = Versions(name);
  if (versions.empty()) return std::nullopt;
  return entries_.at(versions.begin()->second).artifact.owner();
}

std::optional<std::string> ArtifactStore::OwnerOf(const std::string& name) const {
  absl::StatusOr<ArtifactReference> reference = ParseArtifactReference(name);
  if (!reference.ok()) return std::nullopt;
  absl::MutexLock lock(&mutex_);
  return OwnerOfRows(reference->name);
}

std::string ArtifactStore::ShownName(const Entry& entry) const {
  const std::string& name = entry.artifact.name();
  return Versions(name).size() > 1 ? absl::StrCat(name, "@1") : name;
}

v1::Artifact ArtifactStore::Shown(const Entry& entry) const {
  v1::Artifact artifact = entry.artifact;
  artifact.set_name(ShownName(entry));
  return artifact;
}

absl::StatusOr<v1::Artifact> ArtifactStore::Find(const std::string& name) const {
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<const Entry*> entry = Locate(name);
  if (!entry.ok()) return entry.status();
  return Shown(**entry);
}

absl::StatusOr<std::string> ArtifactStore::Pinned(const std::string& name) const {
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<const Entry*> entry = Locate(name);
  if (!entry.ok()) return entry.status();
  const v1::Artifact& artifact = (*entry)->artifact;
  const bool first = artifact.name().find('@') == std::string::npos;
  if (artifact.kind() != v1::Artifact::MODEL) return name;
  return first ? absl::StrCat(artifact.name(), "@1") : artifact.name();
}

absl::StatusOr<std::string> ArtifactStore::Folder(const std::string& name) const {
  const absl::StatusOr<ArtifactFolder> folder = Pin(name);
  if (!folder.ok()) return folder.status();
  return folder->path();
}

absl::StatusOr<ArtifactFolder> ArtifactStore::Pin(const std::string& name) const {
  std::optional<Entry> found;
  {
    absl::MutexLock lock(&mutex_);
    absl::StatusOr<const Entry*> entry = Locate(name);
    if (!entry.ok()) return entry.status();
    if (objects_ == nullptr) return (*entry)->folder;
    found = **entry;
  }
  if (absl::Status s = Fetch(found->artifact, found->folder); !s.ok()) return s;
  return found->folder;
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
  for (const auto& [row, entry] : entries_) artifacts.push_back(Shown(entry));
  return artifacts;
}

void ArtifactStore::ForEach(
    const std::function<void(const v1::Artifact& artifact, const std::string& name)>& see) const {
  absl::MutexLock lock(&mutex_);
  for (const auto& [row, entry] : entries_) see(entry.artifact, ShownName(entry));
}

absl::Status ArtifactStore::CheckPresent() const {
  const std::string data = JoinPath(root_, kData);
  std::error_code error;
  if (fs::is_directory(data, error)) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("the folder of the artifacts, ", data, ", is gone; put it back"));
}

absl::StatusOr<std::string> ArtifactStore::MakeStagingFolder() {
  // Otherwise a data folder would appear where the lost one is to be put back.
  if (absl::Status there = CheckPresent(); !there.ok()) return there;
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

absl::StatusOr<std::unique_ptr<ArtifactUpload>> ArtifactStore::Begin(const NewArtifact& what,
                                                                     bool replace,
                                                                     const ArtifactRemoval& how) {
  const std::string& name = what.name;
  absl::StatusOr<ArtifactReference> reference = ParseArtifactReference(name);
  if (!reference.ok()) return reference.status();
  const absl::StatusOr<v1::Artifact> there = Find(name);
  if (reference->version > 0 && !there.ok()) return there.status();
  if (what.kind == v1::Artifact::KIND_UNSPECIFIED || !v1::Artifact::Kind_IsValid(what.kind)) {
    return absl::InvalidArgumentError(
        absl::StrCat("artifact '", name, "': kind must be DATASET, ONNX or MODEL"));
  }
  if (!replace && there.ok()) {
    return absl::AlreadyExistsError(absl::StrCat("artifact '", name,
                                                 "' exists; choose another name, or replace it "
                                                 "(--replace, or the request's field 'replace')"));
  }
  absl::StatusOr<std::string> staging = MakeStagingFolder();
  if (!staging.ok()) return staging.status();
  auto upload = std::unique_ptr<ArtifactUpload>(new ArtifactUpload());
  upload->store_ = this;
  upload->if_exists_ = replace ? IfExists::kReplace : IfExists::kRefuse;
  upload->how_ = how;
  upload->staging_ = *staging;
  upload->artifact_ = RecordOf(what);
  return upload;
}

std::unique_ptr<ArtifactUpload> ArtifactStore::BeginRetry(const std::string& name) {
  auto upload = std::unique_ptr<ArtifactUpload>(new ArtifactUpload());
  upload->store_ = this;
  upload->artifact_.set_name(name);
  return upload;
}

absl::StatusOr<v1::Artifact> ArtifactStore::RegisterStaged(
    const std::string& staging_folder, const NewArtifact& what, IfExists if_exists,
    const IdempotencyRecordFactory& make_idempotency_record,
    const std::function<absl::Status()>& go_on, const ArtifactRemoval& how) {
  absl::StatusOr<ArtifactReference> reference = ParseArtifactReference(what.name);
  if (!reference.ok()) return reference.status();
  absl::StatusOr<std::vector<std::string>> files = FilesBeneath(staging_folder);
  if (!files.ok()) return files.status();
  v1::Artifact artifact = RecordOf(what);
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
  return Install(staging_folder, std::move(artifact), if_exists, how, make_idempotency_record,
                 go_on);
}

}  // namespace espalier
