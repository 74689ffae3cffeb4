// Sends copies of a rank's shards to a worker of another host, on a thread: training does not wait.
#pragma once

#include <map>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "worker/storage/host_cache.h"
#include "worker/storage/shard_peer_client.h"

namespace espalier {

// Thread-safe. Failures are logged: the checkpoint store has the shards, too.
class ShardPusher {
 public:
  // `cache` must outlive this.
  ShardPusher(const v1::ShardPeer& peer, const std::string& job_id, HostCache* cache);
  ~ShardPusher();  // gives up what is not sent yet

  // Sends a file of the cache as the shard `name`. If sending takes longer than the time between
  // checkpoints, only the newest one of each name is sent.
  void Push(const std::string& name, const std::string& sha256);

 private:
  void Loop();

  ShardPeerClient peer_;
  HostCache& cache_;
  absl::Mutex mutex_;
  std::map<std::string, std::string> next_ ABSL_GUARDED_BY(mutex_);  // hashes by name
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace espalier
