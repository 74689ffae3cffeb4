// Messages and collectives between the ranks of one attempt of a job. Implementations: threads of
// one process (in_process_communicator.h); processes, over shared memory and TLS
// (process_communicator.h); GPUs, by NCCL through the CUDA plug-in (nccl_communicator.h).
//
// All ranks issue sends, receives and collectives in one global order, which the planner
// guarantees, so blocking calls cannot form a cycle. Host communicators buffer sends.
//
// Results are deterministic: every rank of the group gets the same bits in every run. Reductions
// add element by element in rank order; f16 and bf16 accumulate in f32 and round once.
//
// Errors: Unavailable or DeadlineExceeded, naming the peer, if it is lost or silent; Cancelled
// after Abort. A communicator is unusable after any error; the next attempt makes a new one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ops/tensor/dtype.h"

namespace espalier {

// Not thread-safe, except Abort.
class Communicator {
 public:
  using Group = std::vector<int>;  // ranks, ascending, this one among them

  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // True if the pointers below are memory of the device that this was made for; false for host
  // memory.
  virtual bool on_device() const { return false; }

  // Messages with one tag between two ranks arrive in the order sent.
  virtual absl::Status Send(const void* data, int64_t bytes, int peer, uint64_t tag) = 0;
  virtual absl::Status Receive(void* data, int64_t bytes, int peer, uint64_t tag) = 0;

  // Collective over `group`. Types: f32, f16, bf16, i32, i64. Only AllReduce and Broadcast allow
  // input == output.
  virtual absl::Status AllReduce(DType dtype, const void* input, void* output, int64_t count,
                                 const Group& group, uint64_t tag) = 0;
  // Each rank gives `bytes`; output holds bytes * group.size().
  virtual absl::Status AllGather(const void* input, void* output, int64_t bytes, const Group& group,
                                 uint64_t tag) = 0;
  // Each rank receives `count` elements; input holds count * group.size().
  virtual absl::Status ReduceScatter(DType dtype, const void* input, void* output, int64_t count,
                                     const Group& group, uint64_t tag) = 0;
  // Each rank sends `bytes` to every other; input and output hold bytes * group.size().
  virtual absl::Status AllToAll(const void* input, void* output, int64_t bytes, const Group& group,
                                uint64_t tag) = 0;
  // Sends group[0]'s input to all.
  virtual absl::Status Broadcast(const void* input, void* output, int64_t bytes, const Group& group,
                                 uint64_t tag) = 0;

  // Waits until all buffered sends are sent.
  virtual absl::Status Flush() { return absl::OkStatus(); }
  // The executor calls this at the end of every step. Waits at most for the sends of the previous
  // step, so that a rank does not wait for a slower one to receive its last messages.
  virtual absl::Status EndStep() { return Flush(); }

  // Ends pending and all later calls with Cancelled. Thread-safe and idempotent.
  virtual void Abort(const std::string& reason) = 0;
};

}  // namespace espalier
