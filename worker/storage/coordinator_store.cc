#include "worker/storage/coordinator_store.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "storage/data_folder_names.h"
#include "worker/storage/remote_file.h"

namespace espalier {
namespace {

constexpr size_t kSha256Bytes = 32;
constexpr int64_t kMostBlockBytes = 256 << 20;

absl::Status OnlyTheCoordinator(const std::string& name) {
  return absl::PermissionDeniedError(
      absl::StrCat("'", name, "': only the coordinator writes manifests and removes checkpoints"));
}

// Whether there is one hash for each block of the object.
bool HasHashes(const v1::ListObjectsReply::Object& object, int64_t block_bytes) {
  if (block_bytes <= 0 || block_bytes > kMostBlockBytes || object.bytes() < 0) return false;
  if (object.block_sha256_size() != (object.bytes() + block_bytes - 1) / block_bytes) return false;
  for (const std::string& hash : object.block_sha256()) {
    if (hash.size() != kSha256Bytes) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointStore::Upload>> CoordinatorStore::Put(
    const std::string& name) {
  if (absl::Status s = CheckObjectName(name); !s.ok()) return s;
  return client_->Put(JoinPath(root_, name));
}

absl::Status CoordinatorStore::PutIfAbsent(const std::string& name, const std::string&) {
  return OnlyTheCoordinator(name);
}

absl::Status CoordinatorStore::DeleteExcept(const std::string& name,
                                            const std::vector<std::string>&) {
  return OnlyTheCoordinator(name);
}

absl::StatusOr<std::shared_ptr<const CoordinatorStore::Listing>> CoordinatorStore::ListOnce(
    const std::string& folder) {
  const bool artifact =
      cache_ != nullptr && absl::StartsWith(folder, absl::StrCat(kArtifactsFolder, "/"));
  if (artifact) {
    absl::MutexLock lock(&mutex_);
    const auto known = artifacts_.find(folder);
    if (known != artifacts_.end()) return known->second;
  }
  absl::StatusOr<v1::ListObjectsReply> reply = client_->List(folder, artifact);
  if (!reply.ok()) return reply.status();
  auto listing = std::make_shared<Listing>();
  for (v1::ListObjectsReply::Object& object : *reply->mutable_objects()) {
    if (object.bytes() < 0 || !CheckObjectName(object.name()).ok() ||
        (artifact && !HasHashes(object, reply->block_bytes()))) {
      return absl::InternalError(absl::StrCat("the coordinator lists '", folder, "' wrongly"));
    }
    const std::string name = object.name();
    (*listing)[name] = std::move(object);
  }
  if (artifact) {
    absl::MutexLock lock(&mutex_);
    block_bytes_ = reply->block_bytes();
    artifacts_[folder] = listing;
  }
  return std::shared_ptr<const Listing>(listing);
}

absl::StatusOr<std::unique_ptr<ReadableFile>> CoordinatorStore::Open(const std::string& name) {
  if (absl::Status s = CheckObjectName(name); !s.ok()) return s;
  const std::string path = JoinPath(root_, name);
  absl::StatusOr<std::shared_ptr<const Listing>> listing =
      ListOnce(path.substr(0, path.rfind('/')));
  if (!listing.ok()) return listing.status();
  const auto found = (*listing)->find(path);
  if (found == (*listing)->end()) {
    return absl::NotFoundError(absl::StrCat("the coordinator has no '", path, "'"));
  }
  const v1::ListObjectsReply::Object& object = found->second;
  RangeReader read = [client = client_, path](int64_t offset, int64_t bytes, void* out) {
    return client->Read(path, offset, bytes, out);
  };
  if (object.block_sha256().empty()) return NewRemoteFile(object.bytes(), std::move(read));
  absl::MutexLock lock(&mutex_);
  return NewCachedRemoteFile(object.bytes(), std::move(read), block_bytes_,
                             {object.block_sha256().begin(), object.block_sha256().end()}, cache_);
}

absl::StatusOr<std::vector<ObjectReader::Object>> CoordinatorStore::List(
    const std::string& folder) {
  if (!folder.empty()) {
    if (absl::Status s = CheckObjectName(folder); !s.ok()) return s;
  }
  absl::StatusOr<std::shared_ptr<const Listing>> listing =
      ListOnce(folder.empty() ? root_ : JoinPath(root_, folder));
  if (!listing.ok()) return listing.status();
  std::vector<Object> objects;
  const size_t skip = root_.empty() ? 0 : root_.size() + 1;
  for (const auto& [name, object] : **listing) {
    objects.push_back({name.substr(skip), object.bytes()});
  }
  return objects;
}

}  // namespace espalier
