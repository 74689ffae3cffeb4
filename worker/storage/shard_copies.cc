#include "worker/storage/shard_copies.h"

#include <algorithm>

namespace espalier {

void ShardCopies::Kept(const std::string& job_id, const std::string& name,
                       const std::string& sha256) {
  absl::MutexLock lock(&mutex_);
  if (kept_.size() >= kMostNames) kept_.clear();
  std::deque<std::string>& hashes = kept_[{job_id, name}];
  hashes.erase(std::remove(hashes.begin(), hashes.end(), sha256), hashes.end());
  hashes.push_back(sha256);
  while (hashes.size() > kKept) {
    const std::string oldest = hashes.front();
    hashes.pop_front();
    // Ranks may hold the same.
    const bool used = std::any_of(kept_.begin(), kept_.end(), [&](const auto& other) {
      return std::count(other.second.begin(), other.second.end(), oldest) != 0;
    });
    if (!used) cache_.Remove(oldest);
  }
}

}  // namespace espalier
