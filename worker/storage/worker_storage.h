// Chooses where a worker finds the files of its jobs: in the coordinator's data folder, if it
// shares that, otherwise over gRPC; checkpoints in an object store, if the coordinator says so.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/file_system.h"
#include "espalier/v1/cluster.pb.h"
#include "espalier/v1/storage.grpc.pb.h"
#include "espalier/v1/worker.pb.h"
#include "storage/s3_checkpoint_store.h"
#include "worker/storage/copied_shards_store.h"
#include "worker/storage/host_cache.h"
#include "worker/storage/job_storage.h"
#include "worker/storage/shard_copies.h"

namespace espalier {

struct WorkerStorageOptions {
  FileSystem* files = nullptr;
  // A new connection to the coordinator's Storage service, for each join.
  std::function<std::shared_ptr<v1::Storage::StubInterface>()> connect;
  HostCache* cache = nullptr;
  ShardCopies* copies = nullptr;  // null: no shards are copied
  // Shards are sent to workers of other hosts by TLS only.
  bool encrypted = true;
  // Where this host has the coordinator's data folder; empty: where the coordinator has it.
  std::string data_dir;
  std::function<s3::S3World()> object_store_world = s3::SystemS3World;
};

// Thread-safe. What the options point to must outlive it and its JobStorages.
class WorkerStorage {
 public:
  explicit WorkerStorage(WorkerStorageOptions options) : options_(std::move(options)) {}

  // The path of the data folder on this host, if it is there.
  std::string PathOf(const std::string& coordinators) const {
    return options_.data_dir.empty() ? coordinators : options_.data_dir;
  }

  // Call after each join. FailedPrecondition if the reply names no usable folder; errors of an
  // object store that this host cannot use.
  absl::Status Join(const v1::JoinReply& reply);
  // Ends what Join waits for, now and later, within a second or two. Idempotent.
  void Stop() { *stopped_ = true; }

  // For an attempt under the lease of the last join. Its shards are copied to, and looked for in,
  // these places and this host's disk, unless all hosts share the folder of the checkpoints.
  std::shared_ptr<JobStorage> For(const v1::Attempt& attempt, ShardPlaces places = {}) const;

 private:
  const WorkerStorageOptions options_;
  const std::shared_ptr<std::atomic<bool>> stopped_ = std::make_shared<std::atomic<bool>>(false);
  mutable absl::Mutex mutex_;
  v1::JoinReply joined_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<v1::Storage::StubInterface> storage_ ABSL_GUARDED_BY(mutex_);
  std::string object_store_url_ ABSL_GUARDED_BY(mutex_);
  // Null: checkpoints are in the data folder.
  std::shared_ptr<s3::S3CheckpointStore> object_store_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
