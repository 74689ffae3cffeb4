#include "tests/gpu/backend.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/register_all.h"

namespace espalier::gpu_check {
namespace {

template <typename T>
T Read(const HostTensor& tensor, int64_t i) {
  T value;
  std::memcpy(&value, tensor.bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void Write(HostTensor* tensor, int64_t i, T value) {
  std::memcpy(tensor->bytes.data() + i * sizeof(T), &value, sizeof(T));
}

class CpuBackend : public Backend {
 public:
  CpuBackend() { RegisterCpuKernels(kernels_); }
  const KernelRegistry& kernels() const override { return kernels_; }

  std::string Run(const KernelSpec& spec, const RunOptions& options,
                  std::vector<HostTensor>* inputs, std::vector<HostTensor>* outputs) override {
    std::string error;
    const std::unique_ptr<Kernel> kernel = kernels_.Create(spec, &error);
    if (kernel == nullptr) return error;
    const auto views = [](std::vector<HostTensor>* tensors) {
      std::vector<TensorView> views;
      for (HostTensor& t : *tensors) {
        views.push_back({t.present() ? t.bytes.data() : nullptr, t.spec});
      }
      return views;
    };
    const std::vector<TensorView> in = views(inputs), out = views(outputs);
    const size_t bytes = (kernel->workspace_bytes() + 64) / 64 * 64;
    const std::unique_ptr<void, decltype(&std::free)> workspace(std::aligned_alloc(64, bytes),
                                                                &std::free);
    return kernel
        ->Run({in, out, workspace.get(), options.seed, options.node_key, options.step,
               options.training, nullptr})
        .error;
  }

 private:
  KernelRegistry kernels_;
};

// Device memory, freed at the end of its scope.
class DeviceBlock {
 public:
  explicit DeviceBlock(CudaPlugin* plugin, int device) : plugin_(plugin), device_(device) {}
  DeviceBlock(DeviceBlock&& other) noexcept
      : plugin_(other.plugin_), device_(other.device_), data_(other.data_) {
    other.data_ = nullptr;
  }
  ~DeviceBlock() {
    if (data_ != nullptr) plugin_->Free(device_, data_);
  }
  KernelStatus Allocate(int64_t bytes) { return plugin_->Allocate(device_, bytes, &data_); }
  void* data() const { return data_; }

 private:
  CudaPlugin* plugin_;
  int device_;
  void* data_ = nullptr;
};

class CudaBackend : public Backend {
 public:
  CudaBackend(CudaPlugin* plugin, int device) : plugin_(plugin), device_(device) {
    plugin_->RegisterKernels(&kernels_);
  }
  const KernelRegistry& kernels() const override { return kernels_; }

  std::string Run(const KernelSpec& spec, const RunOptions& options,
                  std::vector<HostTensor>* inputs, std::vector<HostTensor>* outputs) override {
    if (const KernelStatus s = plugin_->SetCurrent(device_); !s.ok()) return s.error;
    std::string error;
    const std::unique_ptr<Kernel> kernel = kernels_.Create(spec, &error);
    if (kernel == nullptr) return error;
    std::vector<DeviceBlock> blocks;
    std::vector<TensorView> in, out;
    if (error = Upload(*inputs, &blocks, &in); !error.empty()) return error;
    if (error = Upload(*outputs, &blocks, &out); !error.empty()) return error;
    DeviceBlock workspace(plugin_, device_);
    const int64_t bytes = static_cast<int64_t>(kernel->workspace_bytes());
    if (const KernelStatus s = workspace.Allocate(bytes); !s.ok()) return s.error;
    // Fills the workspace: kernels must not rely on its contents.
    if (const KernelStatus s =
            plugin_->Fill(device_, workspace.data(), DType::kF32, bytes / 4, -7e30);
        !s.ok()) {
      return s.error;
    }
    if (const KernelStatus s =
            kernel->Run({in, out, workspace.data(), options.seed, options.node_key, options.step,
                         options.training, plugin_->Stream(device_)});
        !s.ok()) {
      return s.error;
    }
    if (const KernelStatus s = plugin_->Synchronize(device_); !s.ok()) return s.error;
    if (error = Download(in, inputs); !error.empty()) return error;
    return Download(out, outputs);
  }

 private:
  std::string Upload(const std::vector<HostTensor>& tensors, std::vector<DeviceBlock>* blocks,
                     std::vector<TensorView>* views) {
    for (const HostTensor& t : tensors) {
      views->push_back({nullptr, t.spec});
      if (!t.present()) continue;
      DeviceBlock block(plugin_, device_);
      const int64_t bytes = static_cast<int64_t>(t.bytes.size());
      if (const KernelStatus s = block.Allocate(bytes); !s.ok()) return s.error;
      if (const KernelStatus s =
              plugin_->CopyToDevice(device_, block.data(), t.bytes.data(), bytes);
          !s.ok()) {
        return s.error;
      }
      views->back().data = block.data();
      blocks->push_back(std::move(block));
    }
    return "";
  }

  std::string Download(const std::vector<TensorView>& views, std::vector<HostTensor>* tensors) {
    for (size_t i = 0; i < views.size(); ++i) {
      if (!views[i].present()) continue;
      std::vector<uint8_t>& bytes = (*tensors)[i].bytes;
      if (const KernelStatus s = plugin_->CopyToHost(device_, bytes.data(), views[i].data,
                                                     static_cast<int64_t>(bytes.size()));
          !s.ok()) {
        return s.error;
      }
    }
    return "";
  }

  CudaPlugin* plugin_;
  int device_;
  KernelRegistry kernels_;
};

}  // namespace

HostTensor HostTensor::Zeros(const TensorSpec& spec) {
  HostTensor tensor{spec, {}};
  if (tensor.present()) tensor.bytes.assign(std::max<size_t>(1, spec.bytes()), 0);
  return tensor;
}

double ValueAt(const HostTensor& tensor, int64_t i) {
  switch (tensor.spec.dtype) {
    case DType::kF32:
      return Read<float>(tensor, i);
    case DType::kBF16:
      return BF16ToF32(Read<uint16_t>(tensor, i));
    case DType::kF16:
      return F16ToF32(Read<uint16_t>(tensor, i));
    case DType::kI32:
      return Read<int32_t>(tensor, i);
    case DType::kI64:
      return static_cast<double>(Read<int64_t>(tensor, i));
    case DType::kI8:
      return Read<int8_t>(tensor, i);
    case DType::kBool:
    case DType::kU8:
      return Read<uint8_t>(tensor, i);
    case DType::kInvalid:
      break;
  }
  return 0;
}

void SetValue(HostTensor* tensor, int64_t i, double value) {
  switch (tensor->spec.dtype) {
    case DType::kF32:
      return Write<float>(tensor, i, static_cast<float>(value));
    case DType::kBF16:
      return Write<uint16_t>(tensor, i, F32ToBF16(static_cast<float>(value)));
    case DType::kF16:
      return Write<uint16_t>(tensor, i, F32ToF16(static_cast<float>(value)));
    case DType::kI32:
      return Write<int32_t>(tensor, i, static_cast<int32_t>(value));
    case DType::kI64:
      return Write<int64_t>(tensor, i, static_cast<int64_t>(value));
    case DType::kBool:
      return Write<uint8_t>(tensor, i, value != 0);
    case DType::kI8:
      return Write<int8_t>(tensor, i, static_cast<int8_t>(value));
    case DType::kU8:
      return Write<uint8_t>(tensor, i, static_cast<uint8_t>(value));
    case DType::kInvalid:
      break;
  }
}

CudaPlugin* OpenCudaPlugin(const std::string& path, std::string* error) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    *error = dlerror();
    return nullptr;
  }
  const auto entry = reinterpret_cast<CudaPluginEntry>(dlsym(library, kCudaPluginSymbol));
  CudaPlugin* plugin = entry != nullptr ? entry(kCudaPluginAbi) : nullptr;
  if (plugin == nullptr) {
    *error = path + " is no CUDA plug-in of interface version " + std::to_string(kCudaPluginAbi);
  }
  return plugin;
}

std::unique_ptr<Backend> NewCpuBackend() { return std::make_unique<CpuBackend>(); }

std::unique_ptr<Backend> NewCudaBackend(CudaPlugin* plugin, int device) {
  return std::make_unique<CudaBackend>(plugin, device);
}

}  // namespace espalier::gpu_check
