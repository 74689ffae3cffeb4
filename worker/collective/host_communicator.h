// Collectives over point-to-point messages between host memories, for communicators that can send
// and receive. AllReduce is reduce-scatter and all-gather: rank i of the group adds up part i in
// the order of the ranks, so every rank gets the same bits, whatever the transport.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
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

 protected:
  // Bytes of sends that leave at once, or are kept: a Send beyond them may wait for the peers to
  // receive what was sent before.
  virtual int64_t max_buffered_bytes() const { return std::numeric_limits<int64_t>::max(); }

 private:
  // What goes to or comes from the rank at a place of the group.
  using Outgoing = absl::FunctionRef<absl::Span<const char>(int index)>;
  using Incoming = absl::FunctionRef<absl::Span<char>(int index)>;

  // With all others of the group: sends them theirs, receives what they have for this one. At most
  // `largest` bytes a message, the same number on all ranks.
  absl::Status Exchange(const Group& group, int me, int64_t largest, uint64_t tag,
                        Outgoing outgoing, Incoming incoming);
  // Sends everyone their part of the inputs, which have `most` elements at most, and adds up part
  // `me`, of `count`, in the order of the ranks, into `output`. That may be where `parts(me)` is.
  absl::Status ReduceParts(DType dtype, Outgoing parts, void* output, int64_t count, int64_t most,
                           const Group& group, int me, uint64_t tag);

  std::vector<char> received_;  // kept between calls
  std::vector<float> sum_;
};

// Position of `rank` in the group; -1 if it is not there.
int IndexInGroup(const Communicator::Group& group, int rank);

}  // namespace espalier
