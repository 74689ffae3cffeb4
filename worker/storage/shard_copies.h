// Copies of checkpoint shards on this host's disk: of its own workers' ranks, and of those of other
// hosts. The checkpoint store has them all, too.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "worker/storage/host_cache.h"

namespace espalier {

// Thread-safe.
class ShardCopies {
 public:
  // `cache` must outlive this.
  explicit ShardCopies(HostCache* cache) : cache_(*cache) {}

  HostCache& cache() { return cache_; }

  // Of a file that was just put into the cache: the shard `name` ("rank-0.safetensors") of a job's
  // newest checkpoint. Removes that shard of older ones but the last two: the newest checkpoint is
  // none yet if other ranks do not finish theirs.
  void Kept(const std::string& job_id, const std::string& name, const std::string& sha256);

 private:
  static constexpr size_t kKept = 2;  // of each job and name
  // Of jobs that have ended, copies go when the cache has no room.
  static constexpr size_t kMostNames = 100'000;

  HostCache& cache_;
  absl::Mutex mutex_;
  std::map<std::pair<std::string, std::string>, std::deque<std::string>> kept_
      ABSL_GUARDED_BY(mutex_);  // hashes by job and name, oldest first
};

}  // namespace espalier
