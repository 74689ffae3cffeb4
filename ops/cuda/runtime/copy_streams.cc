#include "ops/cuda/runtime/copy_streams.h"

#include "ops/cuda/runtime/cuda_status.h"

namespace espalier {

CopyStreams::~CopyStreams() {
  for (const auto& [ticket, event] : running_) cudaEventDestroy(event);
  for (cudaEvent_t event : free_) cudaEventDestroy(event);
  if (to_device_ != nullptr) cudaStreamDestroy(to_device_);
  if (to_host_ != nullptr) cudaStreamDestroy(to_host_);
}

KernelStatus CopyStreams::TakeEvent(cudaEvent_t* event) {
  if (free_.empty()) {
    return CudaStatus(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "cudaEventCreate");
  }
  *event = free_.back();
  free_.pop_back();
  return KernelStatus::Ok();
}

KernelStatus CopyStreams::Begin(void* destination, const void* source, int64_t bytes,
                                cudaMemcpyKind kind, cudaStream_t stream, uint64_t* ticket) {
  cudaStream_t& side = kind == cudaMemcpyHostToDevice ? to_device_ : to_host_;
  if (side == nullptr) {
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        CudaStatus(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking), "cudaStreamCreate"));
  }
  cudaEvent_t event = nullptr;
  ESPALIER_KERNEL_RETURN_IF_ERROR(TakeEvent(&event));
  *ticket = ++last_;
  running_[*ticket] = event;
  ESPALIER_KERNEL_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(event, stream), "cudaEventRecord"));
  ESPALIER_KERNEL_RETURN_IF_ERROR(
      CudaStatus(cudaStreamWaitEvent(side, event, 0), "cudaStreamWaitEvent"));
  ESPALIER_KERNEL_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(destination, source, static_cast<size_t>(bytes), kind, side), "swap"));
  // The waiting stream has captured the event's state, so the event can be reused.
  return CudaStatus(cudaEventRecord(event, side), "cudaEventRecord");
}

KernelStatus CopyStreams::Await(uint64_t ticket, cudaStream_t stream) {
  const auto found = running_.find(ticket);
  if (found == running_.end()) {
    return KernelStatus::Error("no copy with ticket " + std::to_string(ticket) + " is under way");
  }
  const cudaEvent_t event = found->second;
  running_.erase(found);
  free_.push_back(event);
  return CudaStatus(cudaStreamWaitEvent(stream, event, 0), "cudaStreamWaitEvent");
}

}  // namespace espalier
