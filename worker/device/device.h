// A device that programs run on: memory, copies, kernels. This is all that the executor knows of
// it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_system.h"
#include "espalier/v1/cluster.pb.h"
#include "ops/cuda/runtime/plugin.h"
#include "ops/kernel/kernel.h"
#include "worker/device/host_memory.h"
#include "worker/device/memory_budget.h"

namespace espalier {

class Device;

// Threads that run the parallel loops of kernels, in addition to the calling one.
enum class KernelThreads {
  kOpenMp,      // the team of the libraries that kernels call
  kThreadTeam,  // for kernels without such libraries (serving): cheaper fork and join
};

// A zeroed block of device memory, aligned to 64 bytes. Freed by the destructor; the device must
// outlive it.
class DeviceMemory {
 public:
  DeviceMemory(Device* device, void* data, int64_t bytes)
      : device_(device), data_(data), bytes_(bytes) {}
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  char* data() const { return static_cast<char*>(data_); }
  int64_t bytes() const { return bytes_; }

 private:
  Device* device_;
  void* data_;
  int64_t bytes_;
};

// Captures work that the device repeats (CUDA graphs): captured once, then launched as a whole.
class GraphCapturer {
 public:
  virtual ~GraphCapturer() = default;
  // Starts capturing what the calling thread enqueues, without running it, until EndCapture.
  // Captured work must not allocate or wait.
  virtual absl::Status BeginCapture() = 0;
  // Ends the capture, also after an error in the captured work; then there is no graph.
  virtual absl::StatusOr<uint64_t> EndCapture() = 0;
  virtual absl::Status Launch(uint64_t graph) = 0;
  virtual void Destroy(uint64_t graph) = 0;
};

// Copies, fills and kernels run in call order. Used by one thread at a time, which calls
// EnterThread first. A host device (is_host) may also be used by other threads on their own memory:
// one program may be created and filled while another one executes.
class Device {
 public:
  virtual ~Device() = default;

  // Kind, model, memory, threads. Calibrate (worker/measure.h) fills in the measured rates.
  virtual const v1::Device& description() const = 0;
  // That its kernels use, such as "sm_90"; empty: not known.
  virtual std::string instruction_set() const { return ""; }
  // True if the host accesses this device's memory directly.
  virtual bool is_host() const = 0;
  virtual const KernelRegistry& kernels() const = 0;
  // For KernelArgs::stream.
  virtual void* stream() const { return nullptr; }
  // Prepares the calling thread to run kernels (thread team, current device). Cheap.
  virtual absl::Status EnterThread(KernelThreads threads) { return absl::OkStatus(); }

  // Returns ResourceExhausted, naming the requested bytes and the limit.
  virtual absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(int64_t bytes) = 0;
  // These return when the host memory may be reused or read.
  virtual absl::Status CopyToDevice(void* destination, const void* host, int64_t bytes) = 0;
  virtual absl::Status CopyToHost(void* host, const void* source, int64_t bytes) = 0;
  virtual absl::Status CopyBox(const BoxCopy& copy) = 0;

  // Asynchronous copies, in order among themselves; each starts when all earlier work has ended.
  // The host memory comes from AllocateHost.
  virtual absl::StatusOr<std::unique_ptr<HostMemory>> AllocateHost(int64_t bytes) = 0;
  virtual absl::StatusOr<uint64_t> BeginCopyToHost(void* host, const void* source,
                                                   int64_t bytes) = 0;
  virtual absl::StatusOr<uint64_t> BeginCopyToDevice(void* destination, const void* host,
                                                     int64_t bytes) = 0;
  // Asynchronously reads `bytes` from files; AwaitCopy returns the error. `ranges` must stay valid
  // until then. Unimplemented where copies need memory of AllocateHost.
  virtual absl::StatusOr<uint64_t> BeginReadToDevice(void* destination,
                                                     const std::vector<FileRange>& ranges,
                                                     int64_t bytes) {
    return absl::UnimplementedError("this device reads no files");
  }
  // Work called later starts after that copy has ended.
  virtual absl::Status AwaitCopy(uint64_t ticket) = 0;
  virtual absl::Status Fill(void* destination, DType dtype, int64_t count, double value) = 0;
  virtual absl::Status Synchronize() { return absl::OkStatus(); }
  // Null where launching a kernel costs nothing.
  virtual GraphCapturer* graph_capturer() { return nullptr; }

 protected:
  friend class DeviceMemory;
  virtual void Free(void* data, int64_t bytes) = 0;
};

struct CpuDeviceOptions {
  int threads = 0;           // for kernels; 0: all cores
  int64_t memory_limit = 0;  // bytes that programs may use; 0: DefaultMemoryLimit
  std::string swap_folder;   // holds swapped tensors; empty: in memory
  // Replaces memory_limit with a budget shared with other devices; may be null.
  std::shared_ptr<MemoryBudget> budget = nullptr;
};
std::unique_ptr<Device> NewCpuDevice(const CpuDeviceOptions& options);

// Opens the plug-in (empty `path`: libespalier_cuda.so next to the executable) and GPU `ordinal`.
// Returns Unavailable, with the message of dlopen or CUDA, on failure.
absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(const std::string& path, int ordinal,
                                                       int64_t memory_limit);

// Returns the plug-in of a device made by OpenCudaDevice, and its ordinal; null for other devices.
CudaPlugin* CudaPluginOf(const Device& device, int* ordinal);

}  // namespace espalier
