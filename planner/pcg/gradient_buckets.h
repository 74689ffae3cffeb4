// What becomes of gradients: which wait for each other, which are used at once, and where. The
// all-reduces are gathered into few large ones: each costs a latency, and they all come at the end
// of the step.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ops/tensor/contiguous.h"
#include "planner/memory/arena.h"
#include "planner/pcg/layout.h"
#include "espalier/v1/program.pb.h"

namespace espalier {

constexpr int64_t kBucketBytes = int64_t{4} << 20;

class GradientBuckets {
 public:
  struct Bucket {
    int group = 0;
    int64_t bytes = 0;
    int members = 0;
  };

  // Puts `bytes` of group `group` (numbered by the caller, from 0) into the group's open bucket, or
  // a new one if they do not fit. Returns the bucket; the offset is its `bytes` before the call.
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

// The replica whose squares count towards the gradient norm, for the gradient that becomes ready as
// number `gradient`: they take turns.
inline int NormReplica(int gradient, const Layout& layout) { return gradient % layout.replicas; }

// Whether a parameter whose gradient no other device has a part of is updated as soon as it is
// ready (GradientInfo::ready), so that the gradient need not wait in memory. Not if something is
// computed of all gradients first.
inline bool UpdatesEarly(const v1::Optimizer& optimizer) {
  return optimizer.clip_norm() == 0 && !optimizer.has_loss_scale();
}

// Whether pieces of a parameter (Sharded in layout.h) are updated where they lie in the whole one,
// instead of in a copy: each must be one stretch of memory that begins as a buffer may.
inline bool UpdatesInPlace(const Layout& storage, const Layout& pieces, int64_t element_bytes) {
  for (size_t i = 0; i < storage.shards.size(); ++i) {
    const std::optional<int64_t> begin =
        ContiguousOffset(pieces.shards[i].region, storage.shards[i].region);
    if (!begin.has_value() || *begin * element_bytes % kArenaAlignment != 0) return false;
  }
  return true;
}

}  // namespace espalier
