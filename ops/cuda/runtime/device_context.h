// Per-device state of the plug-in: the stream, library handles, CUDA graphs, copy streams, and the
// fault record where kernels report input that is out of range. The plug-in creates it once and
// passes it to the kernels that need it.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ops/cuda/runtime/copy_streams.h"
#include "ops/cuda/runtime/device_fault.h"
#include "ops/cuda/runtime/graph_capture.h"
#include "ops/cuda/runtime/pinned_staging.h"
#include "ops/kernel/kernel.h"

namespace espalier {

// Used by one thread at a time, except Enter, which is thread-safe.
class DeviceContext {
 public:
  explicit DeviceContext(int ordinal) : ordinal_(ordinal) {}
  ~DeviceContext();
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

  // Makes this device current in the calling thread; the first call creates the stream and the
  // fault record. Thread-safe.
  KernelStatus Enter();

  int ordinal() const { return ordinal_; }
  cudaStream_t stream() const { return stream_; }
  FaultSink faults() const { return faults_; }
  CopyStreams& copy_streams() { return copy_streams_; }
  PinnedStaging& staged() { return staged_; }
  GraphCapture& graphs() { return graphs_; }

  // kArrivals block counters, used by one kernel at a time; zeros before and after it.
  static constexpr int64_t kArrivals = int64_t{1} << 16;
  uint32_t* arrivals() const { return arrivals_; }

  // Return handles bound to `stream`. cuBLAS computes f32 in f32 (no TF32) and accumulates f16 and
  // bf16 in f32; its workspace is fixed, so that results repeat bit for bit.
  KernelStatus Cublas(void* stream, cublasHandle_t* handle);
  KernelStatus Cudnn(void* stream, cudnnHandle_t* handle);

  // Waits for the stream. Returns the first error of the enqueued work, including faults.
  KernelStatus Synchronize();

 private:
  KernelStatus Initialize();

  const int ordinal_;
  std::mutex mutex_;
  bool initialized_ = false;
  cudaStream_t stream_ = nullptr;
  FaultSink faults_;
  uint32_t* arrivals_ = nullptr;
  CopyStreams copy_streams_;
  PinnedStaging staged_;
  GraphCapture graphs_;
  cublasHandle_t cublas_ = nullptr;
  void* cublas_stream_ = nullptr;
  void* cublas_workspace_ = nullptr;
  cudnnHandle_t cudnn_ = nullptr;
};

class DeviceContexts {
 public:
  explicit DeviceContexts(int devices) {
    for (int i = 0; i < devices; ++i) all_.push_back(std::make_unique<DeviceContext>(i));
  }

  int size() const { return static_cast<int>(all_.size()); }
  // Returns an error if the device does not exist.
  KernelStatus At(int ordinal, DeviceContext** context);
  // Returns the context of the device that is current in the calling thread.
  KernelStatus Current(DeviceContext** context);

 private:
  std::vector<std::unique_ptr<DeviceContext>> all_;
};

}  // namespace espalier
