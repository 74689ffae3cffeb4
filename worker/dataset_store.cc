#include "worker/dataset_store.h"

#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "base/net/grpc_status.h"
#include "base/sha256.h"
#include "storage/npz.h"
#include "storage/s3/endpoint.h"
#include "storage/s3/s3_file.h"

namespace espalier {
namespace {

constexpr char kScheme[] = "artifact:";
constexpr auto kDownloadTimeout = std::chrono::minutes(10);

bool IsSha256(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

absl::Status At(const std::string& uri, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat("dataset '", uri, "': ", std::string(status.message())));
}

// What makes a dataset of the content `version`.
std::string KeyOf(absl::string_view version, const std::string& file, const v1::Dataset& dataset) {
  return absl::StrCat(version, "\n", file, "\n", dataset.format(), "\n", dataset.sequence_length(),
                      "\n", dataset.holdout_fraction());
}

// `file` names the content.
absl::StatusOr<std::shared_ptr<const Dataset>> Parse(std::string content, const std::string& file,
                                                     const v1::Dataset& dataset) {
  switch (dataset.format()) {
    case v1::Dataset::NPZ:
      return Dataset::FromNpz(content, dataset.holdout_fraction(), Dataset::NpyColumn(file));
    case v1::Dataset::TEXT:
      return Dataset::FromText(std::move(content), dataset.sequence_length(),
                               dataset.holdout_fraction());
    default:
      return absl::InvalidArgumentError("it has no format; accepted: NPZ, TEXT");
  }
}

}  // namespace

// A download that has told which artifact it brings. Cancelled when it is destroyed.
class DatasetStore::Download {
 public:
  static absl::StatusOr<std::unique_ptr<Download>> Begin(v1::Models::StubInterface* models,
                                                         const std::string& name) {
    if (models == nullptr) return absl::FailedPreconditionError("artifacts need a coordinator");
    auto download = std::make_unique<Download>();
    download->context_.set_deadline(std::chrono::system_clock::now() + kDownloadTimeout);
    v1::DownloadRequest request;
    request.set_name(name);
    download->reader_ = models->Get(&download->context_, request);
    v1::DownloadReply reply;
    if (!download->reader_->Read(&reply) || !reply.has_artifact()) {
      absl::Status s = FromGrpc(download->Finish(), "download");
      return s.ok() ? absl::InternalError("the coordinator sent no artifact") : s;
    }
    download->artifact_ = reply.artifact();
    const v1::Artifact& artifact = download->artifact_;
    if (artifact.kind() != v1::Artifact::DATASET || artifact.files_size() != 1 ||
        !IsSha256(artifact.sha256())) {
      return absl::InvalidArgumentError("it is not a dataset artifact of one file");
    }
    if (artifact.bytes() < 0 || artifact.bytes() > kMaxDatasetBytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("it has ", artifact.bytes(), " bytes; at most ", kMaxDatasetBytes));
    }
    return download;
  }

  ~Download() {
    if (reader_ == nullptr) return;
    context_.TryCancel();
    Finish();
  }

  const v1::Artifact& artifact() const { return artifact_; }

  absl::StatusOr<std::string> Content() {
    std::string content;
    content.reserve(static_cast<size_t>(artifact_.bytes()));
    v1::DownloadReply reply;
    while (reader_->Read(&reply)) {
      if (static_cast<int64_t>(content.size() + reply.chunk().size()) > artifact_.bytes()) {
        return absl::DataLossError("more arrived than the artifact has");
      }
      content += reply.chunk();
    }
    if (absl::Status s = FromGrpc(Finish(), "download"); !s.ok()) return s;
    if (Sha256Hex(content) != artifact_.sha256()) {
      return absl::DataLossError("what arrived does not have the artifact's SHA-256");
    }
    return content;
  }

 private:
  grpc::Status Finish() {
    const auto reader = std::move(reader_);
    for (v1::DownloadReply rest; reader->Read(&rest);) continue;  // as gRPC requires
    return reader->Finish();
  }

  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderInterface<v1::DownloadReply>> reader_;
  v1::Artifact artifact_;
};

std::shared_ptr<const Dataset> DatasetStore::Last(const std::string& key) {
  absl::MutexLock lock(&mutex_);
  return last_key_ == key ? last_ : nullptr;
}

absl::StatusOr<std::shared_ptr<const Dataset>> DatasetStore::ParseAndKeep(
    const std::string& key, std::string content, const std::string& file,
    const v1::Dataset& dataset) {
  absl::StatusOr<std::shared_ptr<const Dataset>> parsed = Parse(std::move(content), file, dataset);
  if (!parsed.ok()) return parsed.status();
  absl::MutexLock lock(&mutex_);
  last_key_ = key;
  last_ = *parsed;
  return parsed;
}

absl::StatusOr<std::shared_ptr<const Dataset>> DatasetStore::OpenArtifact(
    const std::string& name, const v1::Dataset& dataset) {
  absl::StatusOr<std::unique_ptr<Download>> download = Download::Begin(models_, name);
  if (!download.ok()) return download.status();
  const v1::Artifact artifact = (*download)->artifact();
  const std::string& file = artifact.files(0);
  const std::string key = KeyOf(artifact.sha256(), file, dataset);
  if (std::shared_ptr<const Dataset> last = Last(key)) return last;
  std::optional<std::string> cached = cache_->Read(artifact.sha256(), artifact.bytes());
  absl::StatusOr<std::string> content;
  if (cached.has_value()) {
    content = *std::move(cached);
  } else {
    content = (*download)->Content();
    if (!content.ok()) return content.status();
    cache_->Write(artifact.sha256(), *content);
  }
  download->reset();
  return ParseAndKeep(key, *std::move(content), file, dataset);
}

absl::StatusOr<std::shared_ptr<const Dataset>> DatasetStore::OpenObject(
    const v1::Dataset& dataset) {
  const std::string& uri = dataset.uri();
  absl::StatusOr<std::unique_ptr<s3::S3File>> file = roots_->OpenObject(uri);
  if (!file.ok()) return file.status();
  const int64_t bytes = (*file)->size();
  const std::string version = absl::StrCat(uri, "\n", (*file)->etag(), "\n", bytes);
  const std::string key = KeyOf(version, uri, dataset);
  if (std::shared_ptr<const Dataset> last = Last(key)) return last;
  std::optional<std::string> cached = cache_->ReadVersion(version, bytes);
  if (cached.has_value()) return ParseAndKeep(key, *std::move(cached), uri, dataset);
  absl::StatusOr<std::string> content = ReadWhole(**file, kMaxDatasetBytes);
  if (!content.ok()) return content.status();
  cache_->WriteVersion(version, *content);
  return ParseAndKeep(key, *std::move(content), uri, dataset);
}

absl::StatusOr<std::shared_ptr<const Dataset>> DatasetStore::Open(const v1::Dataset& dataset) {
  const std::string& uri = dataset.uri();
  if (absl::StartsWith(uri, kScheme)) {
    auto opened = OpenArtifact(uri.substr(sizeof(kScheme) - 1), dataset);
    return opened.ok() ? opened : At(uri, opened.status());
  }
  if (absl::StartsWith(uri, s3::kScheme)) {
    auto opened = OpenObject(dataset);
    return opened.ok() ? opened : At(uri, opened.status());
  }
  if (!absl::StartsWith(uri, "/")) {
    return absl::InvalidArgumentError(
        absl::StrCat("dataset.uri is '", uri,
                     "'; accepted: artifact:<name>, s3://bucket/key, or an absolute path that "
                     "every worker sees"));
  }
  absl::StatusOr<std::unique_ptr<ReadableFile>> file = roots_->Open(uri);
  if (!file.ok()) return At(uri, file.status());
  absl::StatusOr<std::string> content = ReadWhole(**file, kMaxDatasetBytes);
  if (!content.ok()) return At(uri, content.status());
  auto parsed = Parse(*std::move(content), uri, dataset);
  return parsed.ok() ? parsed : At(uri, parsed.status());
}

}  // namespace espalier
