// How the ranks of one attempt of a job talk. Implementations: in-process (in_process.h), between
// processes through memory that ranks of one host share and Gloo over TCP (gloo_communicator.h),
// NCCL through the CUDA plug-in (nccl_communicator.h).
//
// All ranks meet their sends, receives and collectives in one global order (the planner sees to
// it), so calls that block for a peer cannot form a cycle. Sends of host communicators are
// buffered.
//
// Results are the same bits on every rank of the group, and from run to run: sums are taken element
// by element in the order of the ranks, f16 and bf16 in f32 with one rounding at the end.
//
// Errors: Unavailable or DeadlineExceeded naming the peer when it is lost or silent, Cancelled
// after Abort. After any error the communicator is of no more use; make a new one for the next
// attempt.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ops/tensor/dtype.h"

namespace espalier {

// Used by one thread; Abort by any.
class Communicator {
 public:
  using Group = std::vector<int>;  // ranks, ascending, this one among them

  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Whether the pointers below are device memory (of the device it was made for) or host memory.
  virtual bool on_device() const { return false; }

  // Messages between two ranks with one tag arrive in the order in which they were sent.
  virtual absl::Status Send(const void* data, int64_t bytes, int peer, uint64_t tag) = 0;
  virtual absl::Status Receive(void* data, int64_t bytes, int peer, uint64_t tag) = 0;

  // Collective over `group`. AllReduce takes f32, f16, bf16, i32, i64; input == output is allowed
  // there and in Broadcast only.
  virtual absl::Status AllReduce(DType dtype, const void* input, void* output, int64_t count,
                                 const Group& group, uint64_t tag) = 0;
  // `bytes` per rank; output holds bytes * group.size().
  virtual absl::Status AllGather(const void* input, void* output, int64_t bytes, const Group& group,
                                 uint64_t tag) = 0;
  // `count` elements arrive here; input holds count * group.size().
  virtual absl::Status ReduceScatter(DType dtype, const void* input, void* output, int64_t count,
                                     const Group& group, uint64_t tag) = 0;
  // `bytes` for each rank; input and output hold bytes * group.size().
  virtual absl::Status AllToAll(const void* input, void* output, int64_t bytes, const Group& group,
                                uint64_t tag) = 0;
  // From group[0].
  virtual absl::Status Broadcast(const void* input, void* output, int64_t bytes, const Group& group,
                                 uint64_t tag) = 0;

  // Waits until all buffered sends have left.
  virtual absl::Status Flush() { return absl::OkStatus(); }
  // The executor calls it at the end of every step. Waits for the sends of the step before at most,
  // so that a rank need not wait for a slower one to come and fetch what it sent last.
  virtual absl::Status EndStep() { return Flush(); }

  // Ends waiting calls, and all later ones, with Cancelled. From any thread, any number of times.
  virtual void Abort(const std::string& reason) = 0;
};

}  // namespace espalier
