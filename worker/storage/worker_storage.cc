#include "worker/storage/worker_storage.h"

#include <spdlog/spdlog.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "storage/data_folder_names.h"
#include "worker/storage/coordinator_store.h"
#include "worker/storage/storage_client.h"

namespace espalier {
absl::Status WorkerStorage::Join(const v1::JoinReply& reply) {
  const std::string path = PathOf(reply.data_dir());
  if (reply.shares_data_dir() && (path.empty() || path[0] != '/' || RealPath(path) == "/")) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the data folder of the coordinator is '", absl::Utf8SafeCHexEscape(path.substr(0, 300)),
        "', expected an absolute path of a folder below /; give --data-dir, or update espalierd"));
  }
  std::shared_ptr<s3::S3CheckpointStore> object_store;
  if (!reply.checkpoint_store().empty()) {
    absl::StatusOr<std::unique_ptr<s3::S3CheckpointStore>> opened =
        s3::S3CheckpointStore::Create(reply.checkpoint_store());
    absl::Status status = opened.status();
    if (status.ok()) status = (*opened)->Check();
    if (!status.ok()) {
      return absl::Status(
          status.code(),
          absl::StrCat("the coordinator keeps checkpoints in ",
                       absl::Utf8SafeCHexEscape(reply.checkpoint_store()),
                       ", which this worker cannot use: ", std::string(status.message())));
    }
    object_store = *std::move(opened);
  }
  spdlog::info("checkpoints: {}; models and inputs of jobs: {}",
               object_store != nullptr   ? reply.checkpoint_store()
               : reply.shares_data_dir() ? absl::StrCat("in ", path)
                                         : "through the coordinator",
               reply.shares_data_dir() ? absl::StrCat("in ", path) : "through the coordinator");
  absl::MutexLock lock(&mutex_);
  joined_ = reply;
  object_store_ = std::move(object_store);
  return absl::OkStatus();
}

std::shared_ptr<JobStorage> WorkerStorage::For(const v1::Attempt& attempt) const {
  v1::JoinReply joined;
  std::shared_ptr<CheckpointStore> checkpoints;
  {
    absl::MutexLock lock(&mutex_);
    joined = joined_;
    checkpoints = object_store_;
  }
  if (joined.shares_data_dir()) {
    const std::string path = PathOf(joined.data_dir());
    if (checkpoints == nullptr) {
      checkpoints = std::make_shared<FolderCheckpointStore>(*options_.files,
                                                            JoinPath(path, kCheckpointsFolder));
    }
    return std::make_shared<JobStorage>(
        std::move(checkpoints), std::make_shared<FolderCheckpointStore>(*options_.files, path));
  }
  StorageClientOptions client;
  client.stub = options_.stub;
  *client.caller.mutable_lease() = joined.lease();
  client.caller.set_job_id(attempt.job_id());
  client.caller.set_attempt(attempt.attempt());
  const auto cancelled = std::make_shared<std::atomic<bool>>(false);
  client.cancelled = cancelled;
  const auto shared = std::make_shared<const StorageClient>(std::move(client));
  if (checkpoints == nullptr) {
    checkpoints = std::make_shared<CoordinatorStore>(shared, kCheckpointsFolder, nullptr);
  }
  return std::make_shared<JobStorage>(
      std::move(checkpoints), std::make_shared<CoordinatorStore>(shared, "", options_.cache),
      cancelled);
}

}  // namespace espalier
