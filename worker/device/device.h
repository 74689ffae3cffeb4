// A device that programs run on: memory, copies, kernels. The executor sees nothing else of it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ops/cuda/plugin.h"
#include "ops/kernel/kernel.h"
#include "espalier/v1/cluster.pb.h"
#include "base/file_system.h"
#include "worker/device/host_memory.h"
#include "worker/device/memory_budget.h"

namespace espalier {

class Device;

// Threads that the loops of kernels run on, beside the calling one.
enum class KernelThreads {
  kOpenMp,  // those of the libraries that kernels call
  kThreadTeam,     // for kernels that call no such library, as in serving: loops begin and end sooner
};

// A block of device memory, 64-byte aligned and zeroed; given back when destroyed, which must be
// before its device is.
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

// Work that is enqueued on a device many times in the same way: recorded once, then enqueued whole.
class GraphCapturer {
 public:
  virtual ~GraphCapturer() = default;
  // What the calling thread enqueues until End is recorded, not run. It allocates nothing and waits
  // for nothing.
  virtual absl::Status BeginCapture() = 0;
  // Also after an error among what was to be recorded; then there is no graph.
  virtual absl::StatusOr<uint64_t> EndCapture() = 0;
  virtual absl::Status Launch(uint64_t graph) = 0;
  virtual void Destroy(uint64_t graph) = 0;
};

// Copies, fills and kernels are ordered as they are called. Used by one thread at a time; that
// thread calls EnterThread first. A host (is_host) is also used by others, for what concerns memory
// of their own alone: a program may be made and filled while another one ranges.
class Device {
 public:
  virtual ~Device() = default;

  // Kind, model, memory, threads; the measured rates are filled in by worker/calibrate.h.
  virtual const v1::Device& description() const = 0;
  // True if the host reads and writes this device's memory directly.
  virtual bool is_host() const = 0;
  virtual const KernelRegistry& kernels() const = 0;
  // For KernelArgs::stream.
  virtual void* stream() const { return nullptr; }
  // Makes the calling thread fit to run kernels (threads, current device). Cheap.
  virtual absl::Status EnterThread(KernelThreads threads) { return absl::OkStatus(); }

  // ResourceExhausted names the bytes asked for and the limit.
  virtual absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(int64_t bytes) = 0;
  // Return when the host memory may be reused or read.
  virtual absl::Status CopyToDevice(void* destination, const void* host, int64_t bytes) = 0;
  virtual absl::Status CopyToHost(void* host, const void* source, int64_t bytes) = 0;
  virtual absl::Status CopyBox(const BoxCopy& copy) = 0;

  // Copies that run beside what is called afterwards, in order among themselves; each begins when
  // all that was called before has ended. The host memory is that of AllocateHost.
  virtual absl::StatusOr<std::unique_ptr<HostMemory>> AllocateHost(int64_t bytes) = 0;
  virtual absl::StatusOr<uint64_t> BeginCopyToHost(void* host, const void* source,
                                                   int64_t bytes) = 0;
  virtual absl::StatusOr<uint64_t> BeginCopyToDevice(void* destination, const void* host,
                                                     int64_t bytes) = 0;
  // The same from files, `bytes` in all; AwaitCopy says what went wrong with them. `ranges` stay as
  // they are until then. Unimplemented where copies must come from memory of AllocateHost.
  virtual absl::StatusOr<uint64_t> BeginReadToDevice(void* destination,
                                                     const std::vector<FileRange>& ranges,
                                                     int64_t bytes) {
    return absl::UnimplementedError("this device reads no files");
  }
  // What is called afterwards begins when that copy has ended.
  virtual absl::Status AwaitCopy(uint64_t ticket) = 0;
  virtual absl::Status Fill(void* destination, DType dtype, int64_t count, double value) = 0;
  virtual absl::Status Synchronize() { return absl::OkStatus(); }
  // Null where enqueueing costs nothing.
  virtual GraphCapturer* graph_capturer() { return nullptr; }

 protected:
  friend class DeviceMemory;
  virtual void Free(void* data, int64_t bytes) = 0;
};

struct CpuDeviceOptions {
  int threads = 0;           // for kernels; 0: all cores
  int64_t memory_limit = 0;  // bytes that programs may use; 0: DefaultMemoryLimit
  std::string swap_folder;   // where swapped tensors lie; empty: in memory
  // Shared with other devices, in the place of memory_limit; may be null.
  std::shared_ptr<MemoryBudget> budget = nullptr;
};
std::unique_ptr<Device> NewCpuDevice(const CpuDeviceOptions& options);

// Opens the plug-in (`path` empty: libespalier_cuda.so beside the program) and takes GPU `ordinal`.
// Unavailable, with what dlopen or CUDA said, if that does not work.
absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(const std::string& path, int ordinal,
                                                       int64_t memory_limit);

// The plug-in behind a device made by OpenCudaDevice and its ordinal there; null for other devices.
CudaPlugin* CudaPluginOf(const Device& device, int* ordinal);

}  // namespace espalier
