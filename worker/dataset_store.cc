#include "worker/dataset_store.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/net/grpc_status.h"
#include "base/sha256.h"
#include "storage/npz.h"

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

}  // namespace

absl::StatusOr<std::string> DatasetStore::Download(const std::string& name) {
  if (models_ == nullptr) {
    return absl::FailedPreconditionError("artifacts need a coordinator");
  }
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kDownloadTimeout);
  v1::DownloadRequest request;
  request.set_name(name);
  auto reader = models_->Get(&context, request);
  v1::DownloadReply reply;
  if (!reader->Read(&reply) || !reply.has_artifact()) {
    absl::Status s = FromGrpc(reader->Finish(), "download");
    return s.ok() ? absl::InternalError("the coordinator sent no artifact") : s;
  }
  const v1::Artifact artifact = reply.artifact();
  if (artifact.kind() != v1::Artifact::DATASET || artifact.files_size() != 1 ||
      !IsSha256(artifact.sha256())) {
    context.TryCancel();
    reader->Finish();
    return absl::InvalidArgumentError("it is not a dataset artifact of one file");
  }
  if (absl::Status s = files_->CreateDirectories(cache_dir_); !s.ok()) return s;
  const std::string path = JoinPath(cache_dir_, artifact.sha256());
  absl::StatusOr<std::unique_ptr<ReadableFile>> cached = files_->Open(path);
  if (cached.ok() && (*cached)->size() == artifact.bytes()) {
    context.TryCancel();
    reader->Finish();
    return path;
  }
  static std::atomic<int> counter{0};  // names only
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".", counter++, ".tmp");
  absl::StatusOr<std::unique_ptr<WritableFile>> file = files_->Create(temporary);
  if (!file.ok()) {
    context.TryCancel();
    reader->Finish();
    return file.status();
  }
  Sha256 hash;
  absl::Status status;
  while (status.ok() && reader->Read(&reply)) {
    if (!reply.has_chunk()) continue;
    const int64_t bytes = static_cast<int64_t>(reply.chunk().size());
    hash.Add(reply.chunk().data(), bytes);
    status = (*file)->Append(reply.chunk().data(), bytes);
  }
  if (!status.ok()) context.TryCancel();
  const absl::Status finished = FromGrpc(reader->Finish(), "download");
  if (status.ok()) status = finished;
  if (status.ok() && hash.Hex() != artifact.sha256()) {
    status = absl::DataLossError("what arrived does not have the artifact's SHA-256");
  }
  if (status.ok()) status = (*file)->Close();
  if (status.ok()) status = files_->Rename(temporary, path);
  if (!status.ok()) {
    files_->Remove(temporary).IgnoreError();
    return status;
  }
  return path;
}

absl::StatusOr<std::shared_ptr<const Dataset>> DatasetStore::Open(const v1::Dataset& dataset) {
  const std::string& uri = dataset.uri();
  const bool artifact = uri.rfind(kScheme, 0) == 0;
  std::string path = uri;
  if (artifact) {
    absl::StatusOr<std::string> downloaded = Download(uri.substr(sizeof(kScheme) - 1));
    if (!downloaded.ok()) return At(uri, downloaded.status());
    path = *std::move(downloaded);
  } else if (uri.empty() || uri[0] != '/') {
    return absl::InvalidArgumentError(
        absl::StrCat("dataset.uri is '", uri,
                     "'; accepted: artifact:<name>, or an absolute path that every "
                     "worker sees"));
  }
  absl::StatusOr<std::unique_ptr<ReadableFile>> file =
      artifact ? files_->Open(path) : roots_->Open(path);
  if (!file.ok()) return At(uri, file.status());
  const std::string key = absl::StrCat(path, "\n", (*file)->size(), "\n", dataset.format(), "\n",
                                       dataset.sequence_length(), "\n", dataset.holdout_fraction());
  {
    absl::MutexLock lock(&mutex_);
    if (artifact && last_ != nullptr && last_key_ == key) return last_;
  }
  absl::StatusOr<std::string> bytes = ReadWhole(**file, kMaxDatasetBytes);
  if (!bytes.ok()) return At(uri, bytes.status());
  absl::StatusOr<std::shared_ptr<const Dataset>> parsed;
  switch (dataset.format()) {
    case v1::Dataset::NPZ:
      parsed = Dataset::FromNpz(*bytes, dataset.holdout_fraction());
      break;
    case v1::Dataset::TEXT:
      parsed = Dataset::FromText(*std::move(bytes), dataset.sequence_length(),
                                 dataset.holdout_fraction());
      break;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("dataset '", uri, "' has no format; accepted: NPZ, TEXT"));
  }
  if (!parsed.ok()) return At(uri, parsed.status());
  absl::MutexLock lock(&mutex_);
  last_key_ = key;
  last_ = *parsed;
  return parsed;
}

}  // namespace espalier
