// Times messages and collectives between the ranks of a job, for the planner
// (planner/machine/communication.h).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/cluster.pb.h"
#include "worker/collective/communicator.h"
#include "worker/device/device.h"

namespace espalier {

struct MeasureCommunicationOptions {
  uint64_t tag = 0;                                                 // that nobody else uses
  std::vector<int64_t> bytes = {64, 64 << 10, 512 << 10, 4 << 20};  // multiples of 4
  int repetitions = 3;                                              // medians are given; 1 to 1000
};

// All ranks call it at the same place with the same options and get the same answer: each size as a
// message from rank 0 to rank 1, and as the first ranks' input of every collective, for 2, 3, 4, 8,
// 16, ... and all ranks; larger groups get what would take more memory than `bytes.back()` for each
// of 4 ranks left out. What is timed is what they add to work that is done between them, as in a
// step, where ranks that share cores share them evenly. About 2 s for 4 ranks of one host.
// InvalidArgument for options that are not as above; else errors of the communicator and the
// device, after which neither is of use.
absl::StatusOr<v1::CommunicationProfile> MeasureCommunication(
    Communicator& communicator, Device& device, const MeasureCommunicationOptions& options);

}  // namespace espalier
