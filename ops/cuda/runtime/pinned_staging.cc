#include "ops/cuda/runtime/pinned_staging.h"

#include <cstring>

#include "ops/cuda/runtime/cuda_status.h"

namespace espalier {
namespace {

constexpr int64_t kHalfBytes = 2 * PinnedStaging::kMaxBytes;
constexpr int64_t kAlignment = 64;

KernelStatus Lock(char** memory, int64_t bytes) {
  void* data = nullptr;
  ESPALIER_KERNEL_RETURN_IF_ERROR(
      CudaStatus(cudaMallocHost(&data, static_cast<size_t>(bytes)), "cudaMallocHost"));
  *memory = static_cast<char*>(data);
  return KernelStatus::Ok();
}

}  // namespace

PinnedStaging::~PinnedStaging() {
  for (Half& half : halves_) {
    if (half.data != nullptr) cudaFreeHost(half.data);
    if (half.ended != nullptr) cudaEventDestroy(half.ended);
  }
  if (from_device_ != nullptr) cudaFreeHost(from_device_);
}

KernelStatus PinnedStaging::Prepare() {
  if (from_device_ != nullptr) return KernelStatus::Ok();
  for (Half& half : halves_) {
    if (half.data == nullptr) ESPALIER_KERNEL_RETURN_IF_ERROR(Lock(&half.data, kHalfBytes));
    if (half.ended == nullptr) {
      ESPALIER_KERNEL_RETURN_IF_ERROR(CudaStatus(
          cudaEventCreateWithFlags(&half.ended, cudaEventDisableTiming), "cudaEventCreate"));
    }
  }
  return Lock(&from_device_, kMaxBytes);
}

KernelStatus PinnedStaging::ToDevice(void* destination, const void* source, int64_t bytes,
                                     cudaStream_t stream) {
  ESPALIER_KERNEL_RETURN_IF_ERROR(Prepare());
  if (used_ + bytes > kHalfBytes) {
    Half& full = halves_[half_];
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        CudaStatus(cudaEventRecord(full.ended, stream), "cudaEventRecord"));
    full.pending = true;
    half_ = 1 - half_;
    used_ = 0;
    Half& next = halves_[half_];
    if (next.pending) {
      ESPALIER_KERNEL_RETURN_IF_ERROR(
          CudaStatus(cudaEventSynchronize(next.ended), "copy to the GPU"));
      next.pending = false;
    }
  }
  char* const staged = halves_[half_].data + used_;
  std::memcpy(staged, source, static_cast<size_t>(bytes));
  used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return CudaStatus(cudaMemcpyAsync(destination, staged, static_cast<size_t>(bytes),
                                    cudaMemcpyHostToDevice, stream),
                    "copy to the GPU");
}

KernelStatus PinnedStaging::ToHost(void* destination, const void* source, int64_t bytes,
                                   cudaStream_t stream) {
  ESPALIER_KERNEL_RETURN_IF_ERROR(Prepare());
  ESPALIER_KERNEL_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(from_device_, source, static_cast<size_t>(bytes),
                                 cudaMemcpyDeviceToHost, stream),
                 "copy from the GPU"));
  ESPALIER_KERNEL_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream), "copy from the GPU"));
  std::memcpy(destination, from_device_, static_cast<size_t>(bytes));
  return KernelStatus::Ok();
}

}  // namespace espalier
