// ArtifactUpload: receives the files of an artifact.
#include <openssl/evp.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/artifacts/artifact_files.h"
#include "server/artifacts/artifact_names.h"
#include "server/artifacts/artifact_store.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

}  // namespace

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
    const IdempotencyRecordFactory& make_idempotency_record,
    const std::function<absl::Status()>& go_on) {
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
  absl::StatusOr<v1::Artifact> installed =
      store_->Install(staging_, artifact_, if_exists_, how_, make_idempotency_record, go_on);
  if (!installed.ok()) return installed.status();
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
