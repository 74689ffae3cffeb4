// A checkpoint store whose shards also have copies: on this host's disk, and on that of one other
// worker. They are read from a copy first; the store is asked for what has none.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "espalier/v1/worker.pb.h"
#include "storage/checkpoint_store.h"
#include "worker/storage/shard_copies.h"
#include "worker/storage/shard_peer_client.h"
#include "worker/storage/shard_pusher.h"

namespace espalier {

// Where copies of a job's shards are, besides this host.
struct ShardPlaces {
  std::optional<v1::ShardPeer> keep_on;  // gets copies of what this rank writes
  std::vector<v1::ShardPeer> peers;      // may have copies of what is read
};

// For one attempt of a job. Errors are those of the store: a copy that cannot be written, read or
// sent is only logged. What a copy holds is not checked here but by the checkpoint's reader, with
// the manifest's SHA-256; if it is wrong, the store alone is read (Distrust).
class CopiedShardsStore : public CheckpointStore {
 public:
  // `copies` must outlive the store.
  CopiedShardsStore(std::shared_ptr<CheckpointStore> store, const std::string& job_id,
                    ShardCopies* copies, const ShardPlaces& places);
  ~CopiedShardsStore() override;

  absl::StatusOr<std::unique_ptr<Upload>> Put(const std::string& name) override;
  absl::Status PutIfAbsent(const std::string& name, const std::string& content) override {
    return store_->PutIfAbsent(name, content);
  }
  // Opening a manifest looks for copies of its shards.
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& name) override;
  absl::StatusOr<std::vector<Object>> List(const std::string& folder) override {
    return store_->List(folder);
  }
  absl::Status DeleteExcept(const std::string& name,
                            const std::vector<std::string>& keep) override {
    return store_->DeleteExcept(name, keep);
  }

  // From now on only the store is read. Returns whether a copy was read before.
  bool Distrust();
  // Bytes of shards that were read so far.
  v1::ShardSources sources() const;
  // Ends waiting calls of other workers soon. Thread-safe; does not block.
  void Cancel();

 private:
  class CopyingUpload;
  class CopiedFile;

  struct Counts {
    std::atomic<int64_t> own_disk{0}, peers{0}, store{0};
  };
  struct KnownShard {
    std::string sha256;
    int64_t bytes = 0;
    std::shared_ptr<ShardPeerClient> peer;  // has a copy; null: none is known
  };

  // Learns the hashes of a checkpoint's shards, and which other host has copies of those that are
  // not on this host's disk.
  void LookForCopies(const std::string& manifest);
  // Returns null if there is no copy.
  std::unique_ptr<ReadableFile> OpenCopy(const KnownShard& shard, std::atomic<int64_t>** count);

  const std::shared_ptr<CheckpointStore> store_;
  const std::string job_id_;
  ShardCopies& copies_;
  std::vector<std::shared_ptr<ShardPeerClient>> peers_;
  const std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
  std::optional<ShardPusher> pusher_;
  mutable absl::Mutex mutex_;
  bool distrusted_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::string, KnownShard> known_ ABSL_GUARDED_BY(mutex_);  // by name
};

}  // namespace espalier
