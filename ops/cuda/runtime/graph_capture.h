// Work of a stream that is enqueued many times in the same way: CUDA graphs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>

#include "ops/kernel/kernel.h"

namespace espalier {

// Used by one thread at a time, with its device current.
class GraphCapture {
 public:
  GraphCapture() = default;
  ~GraphCapture();
  GraphCapture(const GraphCapture&) = delete;
  GraphCapture& operator=(const GraphCapture&) = delete;

  // From here on this thread's work for `stream` is recorded, not run.
  KernelStatus Begin(cudaStream_t stream);
  // Ends that, also if what was to be recorded failed.
  KernelStatus End(cudaStream_t stream, uint64_t* graph_id);
  KernelStatus LaunchGraph(uint64_t graph_id, cudaStream_t stream);
  void DestroyGraph(uint64_t graph_id);

 private:
  uint64_t last_ = 0;
  std::map<uint64_t, cudaGraphExec_t> all_;
};

}  // namespace espalier
