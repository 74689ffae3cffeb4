// CUDA graphs: captures the work that is enqueued on a stream and launches it again.
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

  // From now on the work that this thread enqueues on `stream` is captured, not run.
  KernelStatus Begin(cudaStream_t stream);
  // Ends the capture, even if the captured work failed, and returns the id of its graph.
  KernelStatus End(cudaStream_t stream, uint64_t* graph_id);
  KernelStatus LaunchGraph(uint64_t graph_id, cudaStream_t stream);
  void DestroyGraph(uint64_t graph_id);

 private:
  uint64_t last_ = 0;
  std::map<uint64_t, cudaGraphExec_t> all_;
};

}  // namespace espalier
