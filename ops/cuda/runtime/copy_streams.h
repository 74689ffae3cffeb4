// Asynchronous copies between host and device on streams of their own, one per direction.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <vector>

#include "ops/kernel/kernel.h"

namespace espalier {

// Used by one thread at a time, with its device current.
class CopyStreams {
 public:
  CopyStreams() = default;
  ~CopyStreams();
  CopyStreams(const CopyStreams&) = delete;
  CopyStreams& operator=(const CopyStreams&) = delete;

  // Enqueues a copy that begins when the work now on `stream` has ended. Returns at once if the
  // host memory is page-locked; otherwise waits.
  KernelStatus Begin(void* destination, const void* source, int64_t bytes, cudaMemcpyKind kind,
                     cudaStream_t stream, uint64_t* ticket);
  // Makes work enqueued on `stream` from now on wait for that copy. A ticket can be used once.
  KernelStatus Await(uint64_t ticket, cudaStream_t stream);

 private:
  KernelStatus TakeEvent(cudaEvent_t* event);

  cudaStream_t to_device_ = nullptr, to_host_ = nullptr;
  uint64_t last_ = 0;
  std::map<uint64_t, cudaEvent_t> running_;  // by ticket
  std::vector<cudaEvent_t> free_;
};

}  // namespace espalier
