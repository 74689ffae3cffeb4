#include "worker/storage/worker_storage.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "storage/data_folder_names.h"
#include "worker/storage/coordinator_store.h"
#include "worker/storage/storage_client.h"

namespace espalier {
namespace {

// Removes places that would get shards in clear.
ShardPlaces OnlyEncrypted(ShardPlaces places) {
  const auto clear = [](const v1::ShardPeer& peer) { return peer.certificate().empty(); };
  if (places.keep_on.has_value() && clear(*places.keep_on)) {
    spdlog::warn(
        "no copies of shards are sent to {}, which takes them without TLS only (it runs with "
        "--trusted-network)",
        places.keep_on->address());
    places.keep_on.reset();
  }
  places.peers.erase(std::remove_if(places.peers.begin(), places.peers.end(), clear),
                     places.peers.end());
  return places;
}

}  // namespace

absl::Status WorkerStorage::Join(const v1::JoinReply& reply) {
  const std::string path = PathOf(reply.data_dir());
  if (reply.shares_data_dir() && (path.empty() || path[0] != '/' || RealPath(path) == "/")) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the data folder of the coordinator is '", absl::Utf8SafeCHexEscape(path.substr(0, 300)),
        "', expected an absolute path of a folder below /; give --data-dir, or update espalierd"));
  }
  std::shared_ptr<s3::S3CheckpointStore> object_store;
  if (!reply.checkpoint_store().empty()) {
    {
      // One that was checked before is not checked again.
      absl::MutexLock lock(&mutex_);
      if (object_store_url_ == reply.checkpoint_store()) object_store = object_store_;
    }
    absl::Status status;
    if (object_store == nullptr) {
      absl::StatusOr<std::unique_ptr<s3::S3CheckpointStore>> opened =
          s3::S3CheckpointStore::Create(reply.checkpoint_store(), options_.object_store_world());
      status = opened.status();
      if (status.ok()) object_store = (*opened)->Until(stopped_);
    }
    if (status.ok()) status = object_store->Check();
    if (!status.ok()) {
      return absl::Status(
          status.code(),
          absl::StrCat("the coordinator keeps checkpoints in ",
                       absl::Utf8SafeCHexEscape(reply.checkpoint_store()),
                       ", which this worker cannot use: ", std::string(status.message())));
    }
  }
  spdlog::info("checkpoints: {}; models and inputs of jobs: {}",
               object_store != nullptr   ? reply.checkpoint_store()
               : reply.shares_data_dir() ? absl::StrCat("in ", path)
                                         : "through the coordinator",
               reply.shares_data_dir() ? absl::StrCat("in ", path) : "through the coordinator");
  absl::MutexLock lock(&mutex_);
  joined_ = reply;
  // The coordinator may be on another host than it was.
  if (!reply.shares_data_dir()) storage_ = options_.connect();
  object_store_url_ = object_store != nullptr ? reply.checkpoint_store() : "";
  object_store_ = std::move(object_store);
  return absl::OkStatus();
}

std::shared_ptr<JobStorage> WorkerStorage::For(const v1::Attempt& attempt,
                                               ShardPlaces places) const {
  v1::JoinReply joined;
  std::shared_ptr<v1::Storage::StubInterface> storage;
  std::shared_ptr<CheckpointStore> checkpoints;
  const auto cancellation = std::make_shared<Cancellation>();
  {
    absl::MutexLock lock(&mutex_);
    joined = joined_;
    storage = storage_;
    if (object_store_ != nullptr) checkpoints = object_store_->Until(cancellation->flag());
  }
  std::shared_ptr<ObjectReader> inputs;
  bool shared = false;
  if (joined.shares_data_dir()) {
    const std::string path = PathOf(joined.data_dir());
    inputs = std::make_shared<FolderCheckpointStore>(*options_.files, path);
    if (checkpoints == nullptr) {
      shared = true;
      checkpoints = std::make_shared<FolderCheckpointStore>(*options_.files,
                                                            JoinPath(path, kCheckpointsFolder));
    }
  } else {
    StorageClientOptions options;
    options.stub = storage.get();
    options.kept_stub = std::move(storage);
    *options.caller.mutable_lease() = joined.lease();
    options.caller.set_job_id(attempt.job_id());
    options.caller.set_attempt(attempt.attempt());
    options.cancellation = cancellation;
    const auto client = std::make_shared<const StorageClient>(std::move(options));
    inputs = std::make_shared<CoordinatorStore>(client, "", options_.cache);
    if (checkpoints == nullptr) {
      checkpoints = std::make_shared<CoordinatorStore>(client, kCheckpointsFolder, nullptr);
    }
  }
  if (shared || options_.copies == nullptr) {
    return std::make_shared<JobStorage>(std::move(checkpoints), std::move(inputs), cancellation);
  }
  if (options_.encrypted) places = OnlyEncrypted(std::move(places));
  return std::make_shared<JobStorage>(
      std::make_shared<CopiedShardsStore>(std::move(checkpoints), attempt.job_id(), options_.copies,
                                          places),
      std::move(inputs), cancellation);
}

}  // namespace espalier
