// The face of the CUDA plug-in, a shared object that worker/device/cuda_device.cc opens at run
// time. Standard library only: the plug-in links neither Abseil nor protobuf, and both sides are
// built by the same compiler from the same tree.
//
// The plug-in exports one symbol:
//   extern "C" espalier::CudaPlugin* espalier_cuda_plugin(int abi);
// It returns a pointer that lives as long as the process, or null if `abi` is not the version that
// the plug-in was built with. It must not throw, and must not fail where there is no GPU: Devices()
// is then empty.
//
// Memory and streams: every device has one stream (Stream). Copies, fills, kernels and collectives
// of a device are enqueued on it in order. A device is used by one thread at a time; different
// devices may be used by different threads. Pointers named `device_*` are device memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/kernel/kernel.h"
#include "ops/tensor/box_copy.h"
#include "ops/tensor/dtype.h"
#include "ops/tensor/shape.h"

namespace espalier {

constexpr int kCudaPluginAbi = 3;

struct CudaDeviceInfo {
  int ordinal = 0;           // as cudaSetDevice takes it
  std::string model;         // "NVIDIA H200"
  int64_t memory_bytes = 0;  // in total
};

// One NCCL communicator: a group of ranks, each with one device. Calls are collective over the
// group and are enqueued on the device's stream; they return when enqueued. Sums are over f32, f16,
// bf16, i32 and i64. Buffers are device memory. An error after which the communicator is unusable
// is returned by the call that meets it or by the device's next Synchronize.
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

  // May be called from any thread while another waits in Synchronize: pending work ends with
  // errors.
  virtual void Abort() = 0;
  // Empty while all is well; otherwise what NCCL reports (ncclCommGetAsyncError).
  virtual KernelStatus AsyncError() = 0;
};

class CudaPlugin {
 public:
  virtual ~CudaPlugin() = default;

  virtual std::vector<CudaDeviceInfo> Devices() = 0;

  // Free and total memory of the device now.
  virtual KernelStatus MemoryBytes(int device, int64_t* free_bytes, int64_t* total_bytes) = 0;

  // 256-byte aligned device memory; *device_pointer is set on success.
  virtual KernelStatus Allocate(int device, int64_t bytes, void** device_pointer) = 0;
  virtual void Free(int device, void* device_pointer) = 0;
  // Page-locked host memory for the copies below (they also take ordinary host memory).
  virtual KernelStatus AllocateHost(int device, int64_t bytes, void** host_pointer) = 0;
  virtual void FreeHost(int device, void* host_pointer) = 0;

  // Both return when the host memory may be reused or read; small copies to the device may still be
  // under way, in order with what is enqueued afterwards.
  virtual KernelStatus CopyToDevice(int device, void* device_destination, const void* host_source,
                                    int64_t bytes) = 0;
  virtual KernelStatus CopyToHost(int device, void* host_destination, const void* device_source,
                                  int64_t bytes) = 0;
  // Copies between AllocateHost's memory and the device that run beside the device's stream, on one
  // stream for each direction. Each begins when all that was enqueued before has ended; AwaitCopy:
  // what is enqueued afterwards begins when the copy with that ticket has ended.
  virtual KernelStatus BeginCopyToDevice(int device, void* device_destination,
                                         const void* host_source, int64_t bytes,
                                         uint64_t* ticket) = 0;
  virtual KernelStatus BeginCopyToHost(int device, void* host_destination,
                                       const void* device_source, int64_t bytes,
                                       uint64_t* ticket) = 0;
  virtual KernelStatus AwaitCopy(int device, uint64_t ticket) = 0;
  // Enqueued. Both ends lie in this device's memory.
  virtual KernelStatus CopyBoxOnDevice(int device, const BoxCopy& copy) = 0;
  // Enqueued: `count` elements become `value` (rounded to nearest even; truncated for integers).
  virtual KernelStatus Fill(int device, void* device_destination, DType dtype, int64_t count,
                            double value) = 0;

  // Between the two calls what this thread enqueues on the device's stream is recorded, not run;
  // EndCapture ends that also if something failed. LaunchGraph enqueues all of it again, with the same
  // arguments.
  virtual KernelStatus BeginCapture(int device) = 0;
  virtual KernelStatus EndCapture(int device, uint64_t* graph_id) = 0;
  virtual KernelStatus LaunchGraph(int device, uint64_t graph_id) = 0;
  virtual void DestroyGraph(int device, uint64_t graph_id) = 0;

  // The cudaStream_t that KernelArgs::stream of this device carries.
  virtual void* Stream(int device) = 0;
  // Waits for all that was enqueued; returns the first error among it.
  virtual KernelStatus Synchronize(int device) = 0;

  // Adds the CUDA kernels. Kernels run on the device that is current in the calling thread: the
  // caller calls SetCurrent first, once per thread.
  virtual void RegisterKernels(KernelRegistry* registry) = 0;
  virtual KernelStatus SetCurrent(int device) = 0;

  // NCCL: the first rank of a group makes an id, the others get its bytes from the caller.
  virtual KernelStatus NewCommunicatorId(std::string* id_bytes) = 0;
  // Collective over the group; blocks until all have come. Null with *error on failure.
  virtual std::unique_ptr<CudaCommunicator> CreateCommunicator(int device,
                                                               const std::string& id_bytes,
                                                               int rank, int size,
                                                               std::string* error) = 0;
};

using CudaPluginEntry = CudaPlugin* (*)(int abi);
constexpr const char* kCudaPluginSymbol = "espalier_cuda_plugin";

}  // namespace espalier
