// The interface of the CUDA plug-in, a shared object that worker/device/cuda_device.cc opens at run
// time. Standard library only: the plug-in links neither Abseil nor protobuf, and both sides are
// built by the same compiler from the same tree.
//
// The plug-in exports one symbol:
//   extern "C" espalier::CudaPlugin* espalier_cuda_plugin(int abi);
// It returns a pointer that lives as long as the process, or null if `abi` is not the version that
// the plug-in was built with. It must not throw, and must not fail where there is no GPU: Devices()
// then returns an empty list.
//
// Memory and streams: every device has one stream (Stream). Copies, fills, kernels and collectives
// of a device are enqueued on it in order. A device is used by one thread at a time; different
// devices may be used by different threads. Pointers named `device_*` are device memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/kernel/kernel.h"
#include "ops/tensor/box_copy.h"
#include "ops/tensor/dtype.h"
#include "ops/tensor/shape.h"

namespace espalier {

constexpr int kCudaPluginAbi = 5;

struct CudaDeviceInfo {
  int ordinal = 0;              // as cudaSetDevice takes it
  std::string model;            // "NVIDIA H200"
  int64_t memory_bytes = 0;     // in total
  std::string instruction_set;  // "sm_90"
};

// One NCCL communicator: a group of ranks, each with one device. Calls are collective over the
// group and are enqueued on the device's stream; they return when enqueued. Sums are over f32, f16,
// bf16, i32 and i64. Buffers are device memory. An error after which the communicator is unusable
// is returned by the call that detects it or by the device's next Synchronize.
class CudaCommunicator {
 public:
  virtual ~CudaCommunicator() = default;

  // `peer` is a rank within the group.
  virtual KernelStatus Send(const void* data, int64_t bytes, int peer) = 0;
  virtual KernelStatus Receive(void* data, int64_t bytes, int peer) = 0;
  // `count` elements each; input == output is allowed.
  virtual KernelStatus AllReduceSum(DType dtype, const void* input, void* output,
                                    int64_t count) = 0;
  // `bytes` of each rank, concatenated by rank.
  virtual KernelStatus AllGather(const void* input, void* output, int64_t bytes) = 0;
  // `count` elements arrive at each rank; the input holds count * size.
  virtual KernelStatus ReduceScatterSum(DType dtype, const void* input, void* output,
                                        int64_t count) = 0;
  // `bytes` for each rank; the input and output hold bytes * size.
  virtual KernelStatus AllToAll(const void* input, void* output, int64_t bytes) = 0;
  // From rank 0 of the group, in place.
  virtual KernelStatus Broadcast(void* data, int64_t bytes) = 0;

  // May be called from any thread while another is in a call or waits in Synchronize: pending work
  // and all later calls end with errors.
  virtual void Abort() = 0;
  // Returns the error that NCCL reports asynchronously (ncclCommGetAsyncError), or Ok.
  virtual KernelStatus AsyncError() = 0;
};

class CudaPlugin {
 public:
  virtual ~CudaPlugin() = default;

  virtual std::vector<CudaDeviceInfo> Devices() = 0;

  // Returns the free and total memory of the device.
  virtual KernelStatus MemoryBytes(int device, int64_t* free_bytes, int64_t* total_bytes) = 0;

  // Allocates 256-byte aligned device memory; sets *device_pointer on success.
  virtual KernelStatus Allocate(int device, int64_t bytes, void** device_pointer) = 0;
  virtual void Free(int device, void* device_pointer) = 0;
  // Allocates page-locked host memory for the copies below (which also take ordinary host memory).
  virtual KernelStatus AllocateHost(int device, int64_t bytes, void** host_pointer) = 0;
  virtual void FreeHost(int device, void* host_pointer) = 0;

  // Both return when the host memory may be reused or read. Small copies to the device may still be
  // pending then, in order with work enqueued later.
  virtual KernelStatus CopyToDevice(int device, void* device_destination, const void* host_source,
                                    int64_t bytes) = 0;
  virtual KernelStatus CopyToHost(int device, void* host_destination, const void* device_source,
                                  int64_t bytes) = 0;
  // Asynchronous copies between AllocateHost's memory and the device, on one copy stream per
  // direction. A copy begins when all work enqueued before it has ended. Work enqueued after
  // AwaitCopy begins when the copy with that ticket has ended.
  virtual KernelStatus BeginCopyToDevice(int device, void* device_destination,
                                         const void* host_source, int64_t bytes,
                                         uint64_t* ticket) = 0;
  virtual KernelStatus BeginCopyToHost(int device, void* host_destination,
                                       const void* device_source, int64_t bytes,
                                       uint64_t* ticket) = 0;
  virtual KernelStatus AwaitCopy(int device, uint64_t ticket) = 0;
  // Enqueues a copy within this device's memory.
  virtual KernelStatus CopyBoxOnDevice(int device, const BoxCopy& copy) = 0;
  // Enqueues setting `count` elements to `value` (rounded to nearest even; truncated for integers).
  virtual KernelStatus Fill(int device, void* device_destination, DType dtype, int64_t count,
                            double value) = 0;

  // CUDA graphs. Between BeginCapture and EndCapture the work that this thread enqueues on the
  // device's stream is captured, not run; EndCapture ends the capture even if something failed.
  // LaunchGraph enqueues the captured work with the same arguments.
  virtual KernelStatus BeginCapture(int device) = 0;
  virtual KernelStatus EndCapture(int device, uint64_t* graph_id) = 0;
  virtual KernelStatus LaunchGraph(int device, uint64_t graph_id) = 0;
  virtual void DestroyGraph(int device, uint64_t graph_id) = 0;

  // The cudaStream_t that KernelArgs::stream of this device carries.
  virtual void* Stream(int device) = 0;
  // Waits for all enqueued work and returns its first error.
  virtual KernelStatus Synchronize(int device) = 0;

  // Adds the CUDA kernels. Kernels run on the device that is current in the calling thread.
  // REQUIRES: SetCurrent has been called, once per thread.
  virtual void RegisterKernels(KernelRegistry* registry) = 0;
  virtual KernelStatus SetCurrent(int device) = 0;

  // NCCL: the first rank of a group makes an id; the caller passes its bytes to the others.
  virtual KernelStatus NewCommunicatorId(std::string* id_bytes) = 0;
  // Collective over the group; blocks until all ranks have joined, or `go_on`, which is polled many
  // times a second, returns false. Returns null and sets *error on failure.
  virtual std::unique_ptr<CudaCommunicator> CreateCommunicator(int device,
                                                               const std::string& id_bytes,
                                                               int rank, int size,
                                                               const std::function<bool()>& go_on,
                                                               std::string* error) = 0;
};

using CudaPluginEntry = CudaPlugin* (*)(int abi);
constexpr const char* kCudaPluginSymbol = "espalier_cuda_plugin";

}  // namespace espalier
