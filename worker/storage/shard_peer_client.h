// Calls of another worker's Shards service (espalier/v1/shards.proto).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/file_system.h"
#include "espalier/v1/shards.grpc.pb.h"
#include "espalier/v1/worker.pb.h"

namespace espalier {

// Of one job. Thread-safe. Errors name the other worker's address. No call is repeated: the
// checkpoint store has all shards.
class ShardPeerClient {
 public:
  ShardPeerClient(const v1::ShardPeer& peer, std::string job_id);
  ~ShardPeerClient();

  const std::string& address() const { return address_; }

  // Sends a copy of a shard. ResourceExhausted if the other host has no room for it.
  absl::Status Put(const std::string& name, const std::string& sha256, const ReadableFile& shard);
  // Returns those of the hashes of which the other host has a copy.
  absl::StatusOr<std::set<std::string>> Find(const std::vector<std::string>& sha256,
                                             absl::Duration timeout);
  absl::Status Read(const std::string& sha256, int64_t offset, int64_t bytes, void* out);
  // Ends the calls in progress and all later ones with Cancelled. Does not block.
  void Cancel();

 private:
  class Call;

  absl::Status At(const absl::Status& status) const;

  const std::string address_;
  const std::string job_id_;
  std::unique_ptr<v1::Shards::Stub> stub_;
  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
