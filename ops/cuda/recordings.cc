#include "ops/cuda/recordings.h"

#include "ops/cuda/status.h"

namespace espalier {

Recordings::~Recordings() {
  for (const auto& [id, graph] : all_) cudaGraphExecDestroy(graph);
}

KernelStatus Recordings::Begin(cudaStream_t stream) {
  return CudaStatus(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                    "cudaStreamBeginCapture");
}

KernelStatus Recordings::End(cudaStream_t stream, uint64_t* recording) {
  cudaGraph_t graph = nullptr;
  ESPALIER_KERNEL_RETURN_IF_ERROR(
      CudaStatus(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture"));
  cudaGraphExec_t ready = nullptr;
  const cudaError_t result = cudaGraphInstantiate(&ready, graph, 0);
  cudaGraphDestroy(graph);
  ESPALIER_KERNEL_RETURN_IF_ERROR(CudaStatus(result, "cudaGraphInstantiate"));
  *recording = ++last_;
  all_[*recording] = ready;
  return KernelStatus::Ok();
}

KernelStatus Recordings::Replay(uint64_t recording, cudaStream_t stream) {
  const auto found = all_.find(recording);
  if (found == all_.end()) return KernelStatus::Error("there is no such recording");
  return CudaStatus(cudaGraphLaunch(found->second, stream), "cudaGraphLaunch");
}

void Recordings::Forget(uint64_t recording) {
  const auto found = all_.find(recording);
  if (found == all_.end()) return;
  cudaGraphExecDestroy(found->second);
  all_.erase(found);
}

}  // namespace espalier
