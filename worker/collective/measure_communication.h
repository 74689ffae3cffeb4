// Measures messages and collectives between the ranks of a job, for the planner's cost model
// (planner/machine/communication.h).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "espalier/v1/cluster.pb.h"
#include "worker/collective/communicator.h"
#include "worker/device/device.h"

namespace espalier {

struct MeasureCommunicationOptions {
  uint64_t tag = 0;                                                 // used by no one else
  std::vector<int64_t> bytes = {64, 64 << 10, 512 << 10, 4 << 20};  // multiples of 4
  int repetitions = 3;                                              // 1 to 1000; reports medians
  absl::Duration budget = absl::Seconds(3);
};

// Every rank calls this at the same point with the same options and gets the same profile. Measures
// each size as a message from rank 0 to rank 1, and as the input of every collective on the first
// 2, 3, 4, 8, 16, ... and all ranks. Skips groups that would need more memory than `bytes.back()`
// for each of 4 ranks. A time is what the operation adds to computation between operations, as in a
// training step where ranks share cores. Takes about 2 s for 4 ranks of one host. What would take
// long is measured fewer times, and what `budget` has no time for is left out: large messages
// first. On a network on which ranks meet in no less than 5 ms, each message is measured once, and
// collectives of the least and the greatest size only.
// Returns InvalidArgument for invalid options; after an error of the communicator or the device
// neither can be used.
absl::StatusOr<v1::CommunicationProfile> MeasureCommunication(
    Communicator& communicator, Device& device, const MeasureCommunicationOptions& options);

}  // namespace espalier
