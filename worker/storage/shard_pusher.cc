#include "worker/storage/shard_pusher.h"

#include <spdlog/spdlog.h>

#include <memory>
#include <tuple>

#include "absl/strings/escaping.h"

namespace espalier {

ShardPusher::ShardPusher(const v1::ShardPeer& peer, const std::string& job_id, HostCache* cache)
    : peer_(peer, job_id), cache_(*cache), thread_([this] { Loop(); }) {}

ShardPusher::~ShardPusher() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  peer_.Cancel();
  thread_.join();
}

void ShardPusher::Push(const std::string& name, const std::string& sha256) {
  absl::MutexLock lock(&mutex_);
  next_[name] = sha256;
}

void ShardPusher::Loop() {
  bool failed = false;
  while (true) {
    std::string name, sha256;
    {
      const auto awake = [this] {
        mutex_.AssertHeld();
        return stopping_ || !next_.empty();
      };
      absl::MutexLock lock(&mutex_, absl::Condition(&awake));
      if (stopping_) return;
      std::tie(name, sha256) = *next_.begin();
      next_.erase(next_.begin());
    }
    const std::unique_ptr<ReadableFile> file = cache_.OpenFile(sha256);
    if (file == nullptr) continue;  // the cache had no room
    const absl::Status status = peer_.Put(name, sha256, *file);
    if (status.ok()) {
      spdlog::debug("a copy of {} ({} bytes) is kept at {}", name, file->size(), peer_.address());
    } else if (!absl::IsCancelled(status) && !failed) {
      spdlog::warn("no copy of {} is kept on another host: {}", name,
                   absl::Utf8SafeCHexEscape(status.message()));
    }
    failed = !status.ok();
  }
}

}  // namespace espalier
