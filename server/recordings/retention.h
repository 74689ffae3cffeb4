// Which checkpoints of a recording stay. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace espalier {

// The newest checkpoints, which a job that goes on may need; they always stay.
inline constexpr size_t kLastThatStay = 2;

struct KeptCheckpoint {
  int64_t steps_done = 0;
  int64_t bytes = 0;
  bool stays = false;  // whatever the limits say
};

// 0: no limit.
struct RetentionLimits {
  int64_t keep = 0;            // checkpoints
  int64_t max_bytes = 0;       // of all
  int64_t least_distance = 0;  // steps between two
};

struct RemovedCheckpoints {
  std::vector<size_t> indices;  // ascending
  bool thinned = false;         // for max_bytes
};

// More checkpoints of a job than this do not make a replay faster, however cheap they are.
inline constexpr int64_t kMostUseful = 500;

// Chooses the checkpoints to remove, given in ascending order of steps. If they take more than
// max_bytes, they are thinned (ThinOut) until they take at most three quarters of it, so that this
// is not needed again soon, or nothing is left to thin.
RemovedCheckpoints ChooseRemoved(const std::vector<KeptCheckpoint>& checkpoints,
                                 const RetentionLimits& limits);

// Chooses about every second checkpoint: of the distances between them, the smallest is doubled,
// and doubled again until it is more than half of the middle one, so that those that stay are
// evenly spaced. The last two and those that must stay are not chosen. Empty: there is none that
// may go.
std::vector<size_t> ThinOut(const std::vector<KeptCheckpoint>& checkpoints);

// Of the disk with the checkpoints.
struct DiskRoom {
  int64_t free_bytes = 0, all_bytes = 0;
};

// Recordings leave a fiftieth of the disk free, at most 4 GiB, for models, datasets and the
// coordinator's store. Returns how much is to be free, if less is; else 0.
int64_t MissingRoom(const DiskRoom& room);

}  // namespace espalier
