// Rules that the simulator and the lowering share for gradients: which all-reduces share a bucket
// (as in PyTorch DDP, to pay the latency of a collective once), which updates run early, and which
// run in place.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "espalier/v1/program.pb.h"
#include "ops/tensor/contiguous.h"
#include "planner/memory/arena.h"
#include "planner/pcg/layout.h"

namespace espalier {

constexpr int64_t kBucketBytes = int64_t{4} << 20;

class GradientBuckets {
 public:
  struct Bucket {
    int group = 0;
    int64_t bytes = 0;
    int members = 0;
  };

  // Adds `bytes` to the open bucket of group `group` (numbered by the caller, from 0), or to a new
  // one if they do not fit. Returns the bucket's index; the offset within it is its `bytes` before
  // the call.
  int Add(int group, int64_t bytes) {
    if (group >= static_cast<int>(open_.size())) open_.resize(group + 1, -1);
    int& open = open_[group];
    if (open < 0 || buckets_[open].bytes + bytes > kBucketBytes) {
      open = static_cast<int>(buckets_.size());
      buckets_.push_back({group, 0, 0});
    }
    buckets_[open].bytes += bytes;
    ++buckets_[open].members;
    return open;
  }

  const std::vector<Bucket>& buckets() const { return buckets_; }
  void Clear() {
    buckets_.clear();
    open_.clear();
  }

 private:
  std::vector<Bucket> buckets_;
  std::vector<int> open_;  // by group
};

// Returns the replica whose squares count towards the gradient norm. Replicas take turns:
// `gradient` numbers gradients in the order in which they become ready.
inline int NormReplica(int gradient, const Layout& layout) { return gradient % layout.replicas; }

// Returns whether a parameter whose gradient lies on one device is updated as soon as the gradient
// is ready (GradientInfo::ready), which frees the gradient's memory. False if the update needs a
// value computed from all gradients (clipping, loss scaling).
inline bool UpdatesEarly(const v1::Optimizer& optimizer) {
  return optimizer.clip_norm() == 0 && !optimizer.has_loss_scale();
}

// Returns whether the shards of a parameter (see Sharded in layout.h) are updated in place, within
// the whole parameter, instead of in a copy. Each shard must be one contiguous, aligned range of
// memory.
inline bool UpdatesInPlace(const Layout& storage, const Layout& pieces, int64_t element_bytes) {
  for (size_t i = 0; i < storage.shards.size(); ++i) {
    const std::optional<int64_t> begin =
        ContiguousOffset(pieces.shards[i].region, storage.shards[i].region);
    if (!begin.has_value() || *begin * element_bytes % kArenaAlignment != 0) return false;
  }
  return true;
}

}  // namespace espalier
