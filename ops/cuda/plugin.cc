#include "ops/cuda/runtime/plugin.h"

#include <algorithm>

#include "ops/cuda/register_all.h"
#include "ops/cuda/runtime/cuda_status.h"
#include "ops/cuda/runtime/device_context.h"
#include "ops/cuda/runtime/nccl_communicator.h"
#include "ops/cuda/strided.h"

namespace espalier {
namespace {

int CountDevices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // no driver or no GPU is not an error
    return 0;
  }
  return count;
}

class Plugin : public CudaPlugin {
 public:
  Plugin() : contexts_(CountDevices()) {}

  std::vector<CudaDeviceInfo> Devices() override {
    std::vector<CudaDeviceInfo> devices;
    for (int i = 0; i < contexts_.size(); ++i) {
      cudaDeviceProp properties;
      if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) {
        cudaGetLastError();
        continue;
      }
      devices.push_back(
          {i, properties.name, static_cast<int64_t>(properties.totalGlobalMem),
           "sm_" + std::to_string(properties.major) + std::to_string(properties.minor)});
    }
    return devices;
  }

  KernelStatus MemoryBytes(int device, int64_t* free_bytes, int64_t* total_bytes) override {
    DeviceContext* context = nullptr;
    ESPALIER_KERNEL_RETURN_IF_ERROR(Enter(device, &context));
    size_t free = 0, total = 0;
    ESPALIER_KERNEL_RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free, &total), "cudaMemGetInfo"));
    *free_bytes = static_cast<int64_t>(free);
    *total_bytes = static_cast<int64_t>(total);
    return KernelStatus::Ok();
  }

  KernelStatus Allocate(int device, int64_t bytes, void** device_pointer) override {
    DeviceContext* context = nullptr;
    ESPALIER_KERNEL_RETURN_IF_ERROR(Enter(device, &context));
    const cudaError_t result =
        cudaMalloc(device_pointer, static_cast<size_t>(std::max<int64_t>(bytes, 1)));
    if (result == cudaSuccess) return KernelStatus::Ok();
    cudaGetLastError();  // out of memory spoils nothing: what comes next must not meet it
    return CudaStatus(result, ("cudaMalloc of " + std::to_string(bytes) + " bytes").c_str());
  }
  void Free(int device, void* device_pointer) override {
    DeviceContext* context = nullptr;
    if (Enter(device, &context).ok()) cudaFree(device_pointer);
  }
  KernelStatus AllocateHost(int device, int64_t bytes, void** host_pointer) override {
    DeviceContext* context = nullptr;
    ESPALIER_KERNEL_RETURN_IF_ERROR(Enter(device, &context));
    const cudaError_t result =
        cudaMallocHost(host_pointer, static_cast<size_t>(std::max<int64_t>(bytes, 1)));
    if (result == cudaSuccess) return KernelStatus::Ok();
    cudaGetLastError();
    return CudaStatus(result, ("cudaMallocHost of " + std::to_string(bytes) + " bytes").c_str());
  }
  void FreeHost(int device, void* host_pointer) override {
    DeviceContext* context = nullptr;
    if (Enter(device, &context).ok()) cudaFreeHost(host_pointer);
  }

  KernelStatus CopyToDevice(int device, void* device_destination, const void* host_source,
                            int64_t bytes) override {
    if (bytes <= PinnedStaging::kMaxBytes) {
      DeviceContext* context = nullptr;
      ESPALIER_KERNEL_RETURN_IF_ERROR(Enter(device, &context));
      return context->staged().ToDevice(device_destination, host_source, bytes, context->stream());
    }
    return CopyAndWait(device, device_destination, host_source, bytes, cudaMemcpyHostToDevice,
                       "copy to the GPU");
  }
  KernelStatus CopyToHost(int device, void* host_destination, const void* device_source,
                          int64_t bytes) override {
    if (bytes <= PinnedStaging::kMaxBytes) {
      DeviceContext* context = nullptr;
      ESPALIER_KERNEL_RETURN_IF_ERROR(Enter(device, &context));
      return context->staged().ToHost(host_destination, device_source, bytes, context->stream());
    }
    return CopyAndWait(device, host_destination, device_source, bytes, cudaMemcpyDeviceToHost,
                       "copy from the GPU");
  }
  KernelStatus BeginCopyToDevice(int device, void* device_destination, const void* host_source,
                                 int64_t bytes, uint64_t* ticket) override {
    DeviceContext* context = nullptr;
    ESPALIER_KERNEL_RETURN_IF_ERROR(Enter(device, &context));
    return context->copy_streams().Begin(device_destination, host_source, bytes,
                                         cudaMemcpyHostToDevice, context->stream(), ticket);
  }
  KernelStatus BeginCopyToHost(int device, void* host_destination, const void* device_source,
                               int64_t bytes, uint64_t* ticket) override {
    DeviceContext* context = nullptr;
    ESPALIER_KERNEL_RETURN_IF_ERROR(Enter(device, &context));
    return context->copy_streams().Begin(host_destination, device_source, bytes,
                                         cudaMemcpyDeviceToHost, context->stream(), ticket);
  }
  KernelStatus AwaitCopy(int device, uint64_t ticket) override {
    DeviceContext* context = nullptr;
    ESPALIER_KERNEL_RETURN_IF_ERROR(Enter(device, &context));
    return context->copy_streams().Await(ticket, context->stream());
  }
  KernelStatus CopyBoxOnDevice(int device, const BoxCopy& copy) override {
    DeviceContext* context = nullptr;
    ESPALIER_KERNEL_RETURN_IF_ERROR(Enter(device, &context));
    return CopyBoxOnStream(copy, context->stream());
  }
  KernelStatus Fill(int device, void* device_destination, DType dtype, int64_t count,
                    double value) override {
    DeviceContext* context = nullptr;
    ESPALIER_KERNEL_RETURN_IF_ERROR(Enter(device, &context));
    return FillOnStream(device_destination, dtype, count, value, context->stream());
  }

  void* Stream(int device) override {
    DeviceContext* context = nullptr;
    return Enter(device, &context).ok() ? context->stream() : nullptr;
  }
  KernelStatus Synchronize(int device) override {
    DeviceContext* context = nullptr;
    ESPALIER_KERNEL_RETURN_IF_ERROR(Enter(device, &context));
    return context->Synchronize();
  }

  KernelStatus BeginCapture(int device) override {
    DeviceContext* context = nullptr;
    ESPALIER_KERNEL_RETURN_IF_ERROR(Enter(device, &context));
    return context->graphs().Begin(context->stream());
  }
  KernelStatus EndCapture(int device, uint64_t* graph_id) override {
    DeviceContext* context = nullptr;
    ESPALIER_KERNEL_RETURN_IF_ERROR(Enter(device, &context));
    return context->graphs().End(context->stream(), graph_id);
  }
  KernelStatus LaunchGraph(int device, uint64_t graph_id) override {
    DeviceContext* context = nullptr;
    ESPALIER_KERNEL_RETURN_IF_ERROR(Enter(device, &context));
    return context->graphs().LaunchGraph(graph_id, context->stream());
  }
  void DestroyGraph(int device, uint64_t graph_id) override {
    DeviceContext* context = nullptr;
    if (Enter(device, &context).ok()) context->graphs().DestroyGraph(graph_id);
  }

  void RegisterKernels(KernelRegistry* registry) override {
    RegisterCudaKernels(*registry, contexts_);
  }
  KernelStatus SetCurrent(int device) override {
    DeviceContext* context = nullptr;
    return Enter(device, &context);
  }

  KernelStatus NewCommunicatorId(std::string* id_bytes) override { return NewNcclId(id_bytes); }
  std::unique_ptr<CudaCommunicator> CreateCommunicator(int device, const std::string& id_bytes,
                                                       int rank, int size,
                                                       const std::function<bool()>& go_on,
                                                       std::string* error) override {
    DeviceContext* context = nullptr;
    if (const KernelStatus entered = Enter(device, &context); !entered.ok()) {
      *error = entered.error;
      return nullptr;
    }
    return CreateNcclCommunicator(*context, id_bytes, rank, size, go_on, error);
  }

 private:
  KernelStatus Enter(int device, DeviceContext** context) {
    ESPALIER_KERNEL_RETURN_IF_ERROR(contexts_.At(device, context));
    return (*context)->Enter();
  }

  KernelStatus CopyAndWait(int device, void* destination, const void* source, int64_t bytes,
                           cudaMemcpyKind kind, const char* what) {
    if (bytes == 0) return KernelStatus::Ok();
    DeviceContext* context = nullptr;
    ESPALIER_KERNEL_RETURN_IF_ERROR(Enter(device, &context));
    ESPALIER_KERNEL_RETURN_IF_ERROR(CudaStatus(
        cudaMemcpyAsync(destination, source, static_cast<size_t>(bytes), kind, context->stream()),
        what));
    return CudaStatus(cudaStreamSynchronize(context->stream()), what);
  }

  DeviceContexts contexts_;
};

}  // namespace
}  // namespace espalier

extern "C" __attribute__((visibility("default"))) espalier::CudaPlugin* espalier_cuda_plugin(
    int abi) {
  if (abi != espalier::kCudaPluginAbi) return nullptr;
  // Never destroyed: at exit the driver may be gone already.
  static espalier::CudaPlugin* const plugin = new espalier::Plugin();
  return plugin;
}
