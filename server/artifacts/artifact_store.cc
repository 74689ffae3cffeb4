#include "server/artifacts/artifact_store.h"

#include <openssl/evp.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/sha256.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

constexpr char kIncoming[] = "incoming";
constexpr char kData[] = "data";
constexpr char kDeleted[] = "deleted";
constexpr char kOrphaned[] = "orphaned";
constexpr int64_t kReadChunk = 1 << 20;

// Errors are ignored: a removal never fails a call that was acknowledged. Leftovers are removed at
// the next start.
void RemoveTree(const std::string& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

absl::StatusOr<std::vector<std::string>> FilesBeneath(const std::string& root) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::recursive_directory_iterator it(root, error), end; !error && it != end;
       it.increment(error)) {
    if (it->is_regular_file(error)) names.push_back(fs::relative(it->path(), root).string());
  }
  if (error) {
    return absl::UnavailableError(absl::StrCat("reading ", root, ": ", error.message()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Syncs `root` and every folder under it.
absl::Status SyncFolders(FileSystem& files, const std::string& root) {
  std::error_code error;
  for (fs::recursive_directory_iterator it(root, error), end; !error && it != end;
       it.increment(error)) {
    if (!it->is_directory(error)) continue;
    absl::Status status = files.SyncDirectory(it->path().string());
    if (!status.ok()) return status;
  }
  if (error) {
    return absl::UnavailableError(absl::StrCat("reading ", root, ": ", error.message()));
  }
  return files.SyncDirectory(root);
}

// Returns the hash of a single file, or of a folder's sorted "name sha256" lines.
std::string SumOf(const std::map<std::string, std::string>& sums) {
  if (sums.size() == 1) return sums.begin()->second;
  std::string lines;
  for (const auto& [name, sum] : sums) absl::StrAppend(&lines, name, " ", sum, "\n");
  return Sha256Hex(lines);
}

absl::StatusOr<std::string> SumOfFile(FileSystem& files, const std::string& path, int64_t* bytes) {
  absl::StatusOr<std::unique_ptr<ReadableFile>> file = files.Open(path);
  if (!file.ok()) return file.status();
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> hash(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  EVP_DigestInit_ex(hash.get(), EVP_sha256(), nullptr);
  std::string buffer(kReadChunk, '\0');
  *bytes = (*file)->size();
  for (int64_t at = 0; at < *bytes;) {
    const int64_t n = std::min(kReadChunk, *bytes - at);
    absl::Status status = (*file)->Read(at, n, buffer.data());
    if (!status.ok()) return status;
    EVP_DigestUpdate(hash.get(), buffer.data(), static_cast<size_t>(n));
    at += n;
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_DigestFinal_ex(hash.get(), digest, &size);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size));
}

}  // namespace

ArtifactFolder::Files::~Files() {
  if (!deleted) return;
  RemoveTree(path);
  RemoveTree(mark);
}

absl::Status CheckArtifactName(const std::string& name) {
  bool good = !name.empty() && name.size() <= 128 && name[0] != '.';
  for (char c : name) {
    good = good &&
           (absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-');
  }
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("artifact name '", absl::CHexEscape(name.substr(0, 160)),
                   "': 1 to 128 of the characters A-Z a-z 0-9 . _ - are accepted, not starting "
                   "with a dot"));
}

absl::Status CheckArtifactFile(const std::string& name) {
  bool good = !name.empty() && name.size() <= 255;
  for (unsigned char c : name) good = good && c >= 0x20 && c != 0x7f && c != '\\';
  for (absl::string_view part : absl::StrSplit(name, '/')) {
    good = good && !part.empty() && part != "." && part != "..";
  }
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("file name '", absl::CHexEscape(name.substr(0, 300)),
                   "': a relative path of at most 255 characters without '..', empty parts, "
                   "backslashes or control characters is accepted"));
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

struct ArtifactUpload::Hash {
  Hash() { Begin(); }
  ~Hash() { EVP_MD_CTX_free(context); }
  void Begin() { EVP_DigestInit_ex(context, EVP_sha256(), nullptr); }
  void Add(const std::string& bytes) { EVP_DigestUpdate(context, bytes.data(), bytes.size()); }
  std::string Finish() {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    EVP_DigestFinal_ex(context, digest, &size);
    return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size));
  }
  EVP_MD_CTX* context = EVP_MD_CTX_new();
};

ArtifactUpload::ArtifactUpload() : hash_(std::make_unique<Hash>()) {}

ArtifactUpload::~ArtifactUpload() {
  file_.reset();
  if (!staging_.empty()) RemoveTree(staging_);
}

absl::Status ArtifactUpload::FinishFile() {
  if (!open_) return absl::OkStatus();
  open_ = false;
  if (file_ != nullptr) {
    absl::Status status = file_->Sync();
    if (status.ok()) status = file_->Close();
    file_.reset();
    if (!status.ok()) return status;
  }
  last_sum_ = hash_->Finish();
  sums_[file_name_] = last_sum_;
  return absl::OkStatus();
}

absl::Status ArtifactUpload::StartFile(const std::string& name) {
  absl::Status status = CheckArtifactFile(name);
  if (status.ok()) status = FinishFile();
  if (!status.ok()) return status;
  if (sums_.count(name) > 0) {
    return absl::InvalidArgumentError(absl::StrCat("file '", name, "' was sent twice"));
  }
  if (static_cast<int64_t>(sums_.size()) >= store_->limits_.max_files) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "artifact '", artifact_.name(), "': more than ", store_->limits_.max_files, " files"));
  }
  if (!staging_.empty()) {
    const std::string path = JoinPath(staging_, name);
    const fs::path parent = fs::path(path).parent_path();
    if (parent != fs::path(staging_)) {
      status = store_->files_->CreateDirectories(parent.string());
      if (!status.ok()) return status;
    }
    absl::StatusOr<std::unique_ptr<WritableFile>> file = store_->files_->Create(path);
    if (!file.ok()) return file.status();
    file_ = std::move(*file);
  }
  open_ = true;
  file_name_ = name;
  hash_->Begin();
  return absl::OkStatus();
}

absl::Status ArtifactUpload::Append(const std::string& chunk) {
  if (!open_) {
    return absl::InvalidArgumentError("a chunk came before the name of its file");
  }
  if (static_cast<int64_t>(chunk.size()) > store_->limits_.max_chunk_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("file '", file_name_, "': a chunk has ", chunk.size(), " bytes; at most ",
                     store_->limits_.max_chunk_bytes, " are accepted"));
  }
  bytes_ += static_cast<int64_t>(chunk.size());
  if (bytes_ > store_->limits_.max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("artifact '", artifact_.name(),
                                                     "' is larger than the limit of ",
                                                     store_->limits_.max_bytes, " bytes"));
  }
  if (file_ != nullptr) {
    absl::Status status = file_->Append(chunk.data(), static_cast<int64_t>(chunk.size()));
    if (!status.ok()) return status;
  }
  hash_->Add(chunk);
  return absl::OkStatus();
}

absl::Status ArtifactUpload::CheckSha256(const std::string& hex) {
  if (!open_) {
    return absl::InvalidArgumentError("a sha256 came before the name of its file");
  }
  absl::Status status = FinishFile();
  if (!status.ok()) return status;
  if (absl::AsciiStrToLower(hex) == last_sum_) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("file '", file_name_, "' arrived with sha256 ", last_sum_,
                                          ", expected ", absl::CHexEscape(hex), "; send it again"));
}

absl::StatusOr<v1::Artifact> ArtifactUpload::Commit(
    const IdempotencyRecordFactory& make_idempotency_record) {
  absl::Status status = FinishFile();
  if (!status.ok()) return status;
  if (sums_.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("artifact '", artifact_.name(), "' has no file"));
  }
  for (const auto& [name, sum] : sums_) artifact_.add_files(name);
  artifact_.set_bytes(bytes_);
  artifact_.set_sha256(SumOf(sums_));
  artifact_.set_created_unix_ms(store_->clock_->NowUnixMillis());
  IdempotencyRecord idempotency_record;
  if (make_idempotency_record != nullptr) idempotency_record = make_idempotency_record(artifact_);
  v1::Artifact installed;
  status = store_->Install(staging_, artifact_, replace_,
                           make_idempotency_record != nullptr ? &idempotency_record : nullptr,
                           &installed);
  if (!status.ok()) return status;
  staging_.clear();
  return installed;
}

absl::Status ArtifactUpload::CheckMatches(const v1::Artifact& artifact) {
  if (absl::Status status = FinishFile(); !status.ok()) return status;
  // A single file's hash does not include its name.
  const bool names =
      std::equal(sums_.begin(), sums_.end(), artifact.files().begin(), artifact.files().end(),
                 [](const auto& sum, const std::string& file) { return sum.first == file; });
  if (names && SumOf(sums_) == artifact.sha256()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("artifact '", artifact.name(), "' was made of other files"));
}

}  // namespace espalier
