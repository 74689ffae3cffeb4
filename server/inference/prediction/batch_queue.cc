#include "server/inference/prediction/batch_queue.h"

#include <algorithm>

namespace espalier {

void BatchQueue::Add(uint64_t request, int64_t examples, absl::Time now) {
  waiting_.push_back({request, 0, examples, now});
  examples_ += examples;
}

void BatchQueue::Remove(uint64_t request) {
  std::erase_if(waiting_, [&](const Waiting& waiting) {
    if (waiting.request != request) return false;
    examples_ -= waiting.examples;
    return true;
  });
}

absl::Time BatchQueue::Due() const {
  if (waiting_.empty()) return absl::InfiniteFuture();
  const absl::Time arrival = waiting_.front().arrival;
  return examples_ >= policy_.max_batch ? arrival : arrival + policy_.max_delay;
}

std::vector<BatchQueue::Part> BatchQueue::Take(absl::Time now) {
  std::vector<Part> parts;
  if (now < Due()) return parts;
  int64_t room = policy_.max_batch;
  while (room > 0 && !waiting_.empty()) {
    Waiting& next = waiting_.front();
    const int64_t taken = std::min(room, next.examples);
    parts.push_back({next.request, next.first, taken});
    next.first += taken;
    next.examples -= taken;
    room -= taken;
    examples_ -= taken;
    if (next.examples == 0) waiting_.pop_front();
  }
  return parts;
}

}  // namespace espalier
