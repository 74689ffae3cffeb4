#include "server/recordings/retention.h"

#include <algorithm>
#include <limits>

namespace espalier {
namespace {

constexpr int64_t kReservedPart = 50;
constexpr int64_t kMostReserved = int64_t{4} << 30;

// How many of the oldest may go.
size_t CountOld(const std::vector<size_t>& alive) {
  return alive.size() - std::min(alive.size(), kLastThatStay);
}

// Distances of the old ones from the one before; the initial values are like a checkpoint.
std::vector<int64_t> Distances(const std::vector<KeptCheckpoint>& checkpoints,
                               const std::vector<size_t>& alive) {
  std::vector<int64_t> distances;
  int64_t before = 0;
  for (size_t i = 0; i < CountOld(alive); ++i) {
    distances.push_back(checkpoints[alive[i]].steps_done - before);
    before = checkpoints[alive[i]].steps_done;
  }
  return distances;
}

// Those to remove so that the others are no closer than `distance`.
std::vector<size_t> Closer(const std::vector<KeptCheckpoint>& checkpoints,
                           const std::vector<size_t>& alive, int64_t distance) {
  std::vector<size_t> removed;
  int64_t before = 0;
  for (size_t i = 0; i < CountOld(alive); ++i) {
    const KeptCheckpoint& checkpoint = checkpoints[alive[i]];
    if (!checkpoint.stays && checkpoint.steps_done - before < distance) {
      removed.push_back(alive[i]);
    } else {
      before = checkpoint.steps_done;
    }
  }
  return removed;
}

void Erase(const std::vector<size_t>& removed, std::vector<size_t>* alive) {
  alive->erase(std::remove_if(
                   alive->begin(), alive->end(),
                   [&](size_t i) { return std::binary_search(removed.begin(), removed.end(), i); }),
               alive->end());
}

// Which of the checkpoints at `alive` a thinning removes.
std::vector<size_t> ThinAlive(const std::vector<KeptCheckpoint>& checkpoints,
                              const std::vector<size_t>& alive) {
  const std::vector<int64_t> distances = Distances(checkpoints, alive);
  int64_t smallest = std::numeric_limits<int64_t>::max() / 4;
  for (size_t i = 0; i < distances.size(); ++i) {
    if (!checkpoints[alive[i]].stays) smallest = std::min(smallest, distances[i]);
  }
  // Those that came since the last thinning are closer than the others.
  for (int64_t distance = 2 * std::max<int64_t>(1, smallest);; distance *= 2) {
    const std::vector<size_t> removed = Closer(checkpoints, alive, distance);
    std::vector<size_t> left = alive;
    Erase(removed, &left);
    std::vector<int64_t> after = Distances(checkpoints, left);
    if (after.empty()) return removed;
    const auto middle = after.begin() + static_cast<std::ptrdiff_t>(after.size() / 2);
    std::nth_element(after.begin(), middle, after.end());
    if (distance > *middle / 2) return removed;
  }
}

std::vector<size_t> AllOf(const std::vector<KeptCheckpoint>& checkpoints) {
  std::vector<size_t> all(checkpoints.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  return all;
}

}  // namespace

RemovedCheckpoints ChooseRemoved(const std::vector<KeptCheckpoint>& checkpoints,
                                 const RetentionLimits& limits) {
  RemovedCheckpoints chosen;
  std::vector<size_t> alive = AllOf(checkpoints);
  if (limits.keep > 0) {
    const size_t keep = std::max(static_cast<size_t>(limits.keep), kLastThatStay);
    for (size_t i = 0; i + keep < checkpoints.size(); ++i) {
      if (!checkpoints[i].stays) chosen.indices.push_back(i);
    }
    Erase(chosen.indices, &alive);
  }
  if (limits.least_distance > 0) {
    const std::vector<size_t> removed = Closer(checkpoints, alive, limits.least_distance);
    Erase(removed, &alive);
    chosen.indices.insert(chosen.indices.end(), removed.begin(), removed.end());
    std::sort(chosen.indices.begin(), chosen.indices.end());
  }
  const auto bytes = [&] {
    int64_t sum = 0;
    for (const size_t i : alive) sum += checkpoints[i].bytes;
    return sum;
  };
  if (limits.max_bytes <= 0 || bytes() <= limits.max_bytes) return chosen;
  while (bytes() > limits.max_bytes - limits.max_bytes / 4) {
    const std::vector<size_t> removed = ThinAlive(checkpoints, alive);
    if (removed.empty()) break;
    Erase(removed, &alive);
    chosen.indices.insert(chosen.indices.end(), removed.begin(), removed.end());
    chosen.thinned = true;
  }
  std::sort(chosen.indices.begin(), chosen.indices.end());
  return chosen;
}

int64_t MissingRoom(const DiskRoom& room) {
  const int64_t reserved = std::min(kMostReserved, room.all_bytes / kReservedPart);
  return room.free_bytes < reserved ? reserved : 0;
}

std::vector<size_t> ThinOut(const std::vector<KeptCheckpoint>& checkpoints) {
  return ThinAlive(checkpoints, AllOf(checkpoints));
}

}  // namespace espalier
