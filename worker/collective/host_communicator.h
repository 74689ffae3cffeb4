// Collectives over point-to-point messages between host memories, for communicators that can send
// and receive. AllReduce is reduce-scatter and all-gather: rank i of the group adds up part i in
// the order of the ranks, so every rank gets the same bits, whatever the transport.
#pragma once

#include <vector>

#include "worker/collective/communicator.h"

namespace espalier {

class HostCommunicator : public Communicator {
 public:
  absl::Status AllReduce(DType dtype, const void* input, void* output, int64_t count,
                         const Group& group, uint64_t tag) override;
  absl::Status AllGather(const void* input, void* output, int64_t bytes, const Group& group,
                         uint64_t tag) override;
  absl::Status ReduceScatter(DType dtype, const void* input, void* output, int64_t count,
                             const Group& group, uint64_t tag) override;
  absl::Status AllToAll(const void* input, void* output, int64_t bytes, const Group& group,
                        uint64_t tag) override;
  absl::Status Broadcast(const void* input, void* output, int64_t bytes, const Group& group,
                         uint64_t tag) override;

 private:
  // Adds up part `me` of everyone's input in the order of the ranks, into `output`.
  absl::Status ReducePart(DType dtype, const void* mine, void* output, int64_t count,
                          const Group& group, int me, uint64_t tag);

  std::vector<char> received_;  // kept between calls
  std::vector<float> sum_;
};

// Position of `rank` in the group; -1 if it is not there.
int IndexIn(const Communicator::Group& group, int rank);

}  // namespace espalier
