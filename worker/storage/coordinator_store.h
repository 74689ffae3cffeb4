// The checkpoint store and the data folder of the coordinator, over gRPC.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "storage/checkpoint_store.h"
#include "worker/storage/host_cache.h"
#include "worker/storage/storage_client.h"

namespace espalier {

// For one attempt of a job. PermissionDenied for what only the coordinator does: PutIfAbsent and
// DeleteExcept.
class CoordinatorStore : public CheckpointStore {
 public:
  // Names in the store are relative to `root` of the coordinator's data folder; empty: the data
  // folder. Blocks of artifacts are kept in `cache`, which must outlive the store; null: nowhere.
  CoordinatorStore(std::shared_ptr<const StorageClient> client, std::string root, HostCache* cache)
      : client_(std::move(client)), root_(std::move(root)), cache_(cache) {}

  absl::StatusOr<std::unique_ptr<Upload>> Put(const std::string& name) override;
  absl::Status PutIfAbsent(const std::string& name, const std::string& content) override;
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& name) override;
  absl::StatusOr<std::vector<Object>> List(const std::string& folder) override;
  absl::Status DeleteExcept(const std::string& name, const std::vector<std::string>& keep) override;

 private:
  using Listing = std::map<std::string, v1::ListObjectsReply::Object>;  // by name

  // Lists a folder of the data folder; of artifacts, which do not change, only once.
  absl::StatusOr<std::shared_ptr<const Listing>> ListOnce(const std::string& folder);

  const std::shared_ptr<const StorageClient> client_;
  const std::string root_;
  HostCache* const cache_;
  absl::Mutex mutex_;
  std::map<std::string, std::shared_ptr<const Listing>> artifacts_ ABSL_GUARDED_BY(mutex_);
  int64_t block_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of all listings
};

}  // namespace espalier
