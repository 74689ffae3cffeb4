#include "ops/cuda/runtime/graph_capture.h"

#include "ops/cuda/runtime/cuda_status.h"

namespace espalier {

GraphCapture::~GraphCapture() {
  for (const auto& [id, graph] : all_) cudaGraphExecDestroy(graph);
}

KernelStatus GraphCapture::Begin(cudaStream_t stream) {
  return CudaStatus(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                    "cudaStreamBeginCapture");
}

KernelStatus GraphCapture::End(cudaStream_t stream, uint64_t* graph_id) {
  cudaGraph_t graph = nullptr;
  ESPALIER_KERNEL_RETURN_IF_ERROR(
      CudaStatus(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture"));
  cudaGraphExec_t ready = nullptr;
  const cudaError_t result = cudaGraphInstantiate(&ready, graph, 0);
  cudaGraphDestroy(graph);
  ESPALIER_KERNEL_RETURN_IF_ERROR(CudaStatus(result, "cudaGraphInstantiate"));
  *graph_id = ++last_;
  all_[*graph_id] = ready;
  return KernelStatus::Ok();
}

KernelStatus GraphCapture::LaunchGraph(uint64_t graph_id, cudaStream_t stream) {
  const auto found = all_.find(graph_id);
  if (found == all_.end()) return KernelStatus::Error("there is no such CUDA graph");
  return CudaStatus(cudaGraphLaunch(found->second, stream), "cudaGraphLaunch");
}

void GraphCapture::DestroyGraph(uint64_t graph_id) {
  const auto found = all_.find(graph_id);
  if (found == all_.end()) return;
  cudaGraphExecDestroy(found->second);
  all_.erase(found);
}

}  // namespace espalier
