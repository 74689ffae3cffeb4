// Work of a stream that is enqueued many times in the same way: CUDA graphs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>

#include "ops/kernel/kernel.h"

namespace espalier {

// Used by one thread at a time, with its device current.
class Recordings {
 public:
  Recordings() = default;
  ~Recordings();
  Recordings(const Recordings&) = delete;
  Recordings& operator=(const Recordings&) = delete;

  // From here on this thread's work for `stream` is recorded, not run.
  KernelStatus Begin(cudaStream_t stream);
  // Ends that, also if what was to be recorded failed.
  KernelStatus End(cudaStream_t stream, uint64_t* recording);
  KernelStatus Replay(uint64_t recording, cudaStream_t stream);
  void Forget(uint64_t recording);

 private:
  uint64_t last_ = 0;
  std::map<uint64_t, cudaGraphExec_t> all_;
};

}  // namespace espalier
