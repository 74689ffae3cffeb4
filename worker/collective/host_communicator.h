// Collectives built on point-to-point messages between host buffers. AllReduce is reduce-scatter
// then all-gather: rank i of the group adds part i in rank order, so every rank gets the same bits
// on any transport.
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
  // Bytes of sends that are sent or buffered at once. A Send beyond them may wait until peers
  // receive earlier ones.
  virtual int64_t max_buffered_bytes() const { return std::numeric_limits<int64_t>::max(); }

 private:
  // The bytes for, or from, the rank at `index` of the group.
  using Outgoing = absl::FunctionRef<absl::Span<const char>(int index)>;
  using Incoming = absl::FunctionRef<absl::Span<char>(int index)>;

  // Exchanges messages with all others of the group. No message exceeds `largest` bytes, a number
  // that must be equal on all ranks.
  absl::Status Exchange(const Group& group, int me, int64_t largest, uint64_t tag,
                        Outgoing outgoing, Incoming incoming);
  // Sends each rank its part of the inputs (at most `most` elements) and adds part `me`, of `count`
  // elements, in rank order into `output`, which may be `parts(me)`.
  absl::Status ReduceParts(DType dtype, Outgoing parts, void* output, int64_t count, int64_t most,
                           const Group& group, int me, uint64_t tag);

  std::vector<char> received_;  // reused between calls
  std::vector<float> sum_;
};

// Returns the index of `rank` in the group, or -1.
int IndexInGroup(const Communicator::Group& group, int rank);

}  // namespace espalier
