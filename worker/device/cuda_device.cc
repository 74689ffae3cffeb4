#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "worker/device/device.h"

namespace espalier {
namespace {

absl::Status ToStatus(const KernelStatus& status) {
  return status.ok() ? absl::OkStatus() : absl::InternalError(absl::StrCat("CUDA: ", status.error));
}

class PinnedMemory : public HostMemory {
 public:
  PinnedMemory(CudaPlugin* plugin, int ordinal, char* data, int64_t bytes)
      : HostMemory(data, bytes), plugin_(plugin), ordinal_(ordinal) {}
  ~PinnedMemory() override { plugin_->FreeHost(ordinal_, data()); }

 private:
  CudaPlugin* plugin_;
  int ordinal_;
};

class CudaGraphCapturer : public GraphCapturer {
 public:
  CudaGraphCapturer(CudaPlugin* plugin, int ordinal) : plugin_(plugin), ordinal_(ordinal) {}
  absl::Status BeginCapture() override { return ToStatus(plugin_->BeginCapture(ordinal_)); }
  absl::StatusOr<uint64_t> EndCapture() override {
    uint64_t graph = 0;
    absl::Status s = ToStatus(plugin_->EndCapture(ordinal_, &graph));
    if (!s.ok()) return s;
    return graph;
  }
  absl::Status Launch(uint64_t graph) override {
    return ToStatus(plugin_->LaunchGraph(ordinal_, graph));
  }
  void Destroy(uint64_t graph) override { plugin_->DestroyGraph(ordinal_, graph); }

 private:
  CudaPlugin* plugin_;
  int ordinal_;
};

class CudaDevice : public Device {
 public:
  CudaDevice(CudaPlugin* plugin, const CudaDeviceInfo& info, int64_t memory_bytes)
      : plugin_(plugin), ordinal_(info.ordinal), graph_capturer_(plugin, info.ordinal) {
    description_.set_kind(v1::Device::CUDA);
    description_.set_model(info.model);
    description_.set_memory_bytes(memory_bytes);
    description_.set_threads(1);
    instruction_set_ = info.instruction_set;
    plugin_->RegisterKernels(&kernels_);
  }

  CudaPlugin* plugin() const { return plugin_; }
  int ordinal() const { return ordinal_; }

  const v1::Device& description() const override { return description_; }
  std::string instruction_set() const override { return instruction_set_; }
  bool is_host() const override { return false; }
  const KernelRegistry& kernels() const override { return kernels_; }
  void* stream() const override { return plugin_->Stream(ordinal_); }
  absl::Status EnterThread(KernelThreads threads) override {
    return ToStatus(plugin_->SetCurrent(ordinal_));
  }

  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(int64_t bytes) override {
    if (bytes < 0 || bytes > description_.memory_bytes() - used_) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "out of GPU memory: ", bytes, " bytes asked for, ", description_.memory_bytes() - used_,
          " of ", description_.memory_bytes(), " left; use more workers or a smaller batch"));
    }
    void* data = nullptr;
    if (bytes > 0) {
      if (KernelStatus made = plugin_->Allocate(ordinal_, bytes, &data); !made.ok()) {
        return absl::ResourceExhaustedError(absl::StrCat("CUDA: ", made.error));
      }
    }
    used_ += bytes;
    auto memory = std::make_unique<DeviceMemory>(this, data, bytes);
    if (bytes > 0) {
      if (absl::Status s = Fill(data, DType::kBool, bytes, 0); !s.ok()) return s;
    }
    return memory;
  }

  absl::Status CopyToDevice(void* destination, const void* host, int64_t bytes) override {
    if (bytes == 0) return absl::OkStatus();
    return ToStatus(plugin_->CopyToDevice(ordinal_, destination, host, bytes));
  }
  absl::Status CopyToHost(void* host, const void* source, int64_t bytes) override {
    if (bytes == 0) return absl::OkStatus();
    return ToStatus(plugin_->CopyToHost(ordinal_, host, source, bytes));
  }
  absl::Status CopyBox(const BoxCopy& copy) override {
    return ToStatus(plugin_->CopyBoxOnDevice(ordinal_, copy));
  }
  absl::StatusOr<std::unique_ptr<HostMemory>> AllocateHost(int64_t bytes) override {
    void* data = nullptr;
    if (KernelStatus made = plugin_->AllocateHost(ordinal_, bytes, &data); !made.ok()) {
      return absl::ResourceExhaustedError(absl::StrCat("CUDA: ", made.error));
    }
    return std::make_unique<PinnedMemory>(plugin_, ordinal_, static_cast<char*>(data), bytes);
  }
  absl::StatusOr<uint64_t> BeginCopyToHost(void* host, const void* source, int64_t bytes) override {
    uint64_t ticket = 0;
    absl::Status s = ToStatus(plugin_->BeginCopyToHost(ordinal_, host, source, bytes, &ticket));
    if (!s.ok()) return s;
    return ticket;
  }
  absl::StatusOr<uint64_t> BeginCopyToDevice(void* destination, const void* host,
                                             int64_t bytes) override {
    uint64_t ticket = 0;
    absl::Status s =
        ToStatus(plugin_->BeginCopyToDevice(ordinal_, destination, host, bytes, &ticket));
    if (!s.ok()) return s;
    return ticket;
  }
  absl::Status AwaitCopy(uint64_t ticket) override {
    return ToStatus(plugin_->AwaitCopy(ordinal_, ticket));
  }
  absl::Status Fill(void* destination, DType dtype, int64_t count, double value) override {
    return ToStatus(plugin_->Fill(ordinal_, destination, dtype, count, value));
  }
  absl::Status Synchronize() override { return ToStatus(plugin_->Synchronize(ordinal_)); }
  GraphCapturer* graph_capturer() override { return &graph_capturer_; }

 protected:
  void Free(void* data, int64_t bytes) override {
    if (data != nullptr) plugin_->Free(ordinal_, data);
    used_ -= bytes;
  }

 private:
  CudaPlugin* plugin_;
  int ordinal_;
  CudaGraphCapturer graph_capturer_;
  v1::Device description_;
  std::string instruction_set_;
  KernelRegistry kernels_;
  std::atomic<int64_t> used_{0};
};

std::string BesideProgram(const char* name) {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? name : (program.parent_path() / name).string();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(const std::string& path, int ordinal,
                                                       int64_t memory_limit) {
  const std::string file = path.empty() ? BesideProgram("libespalier_cuda.so") : path;
  // Never closed: the kernels' code must outlive every device.
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    return absl::UnavailableError(
        absl::StrCat("cannot open the CUDA plug-in '", file, "': ", reason != nullptr ? reason : "",
                     "; build it with --config=cuda and give its path with --cuda-plugin"));
  }
  auto entry = reinterpret_cast<CudaPluginEntry>(dlsym(library, kCudaPluginSymbol));
  CudaPlugin* plugin = entry != nullptr ? entry(kCudaPluginAbi) : nullptr;
  if (plugin == nullptr) {
    return absl::UnavailableError(absl::StrCat("'", file,
                                               "' is no CUDA plug-in of interface version ",
                                               kCudaPluginAbi, "; rebuild it from this tree"));
  }
  std::string present;
  for (const CudaDeviceInfo& info : plugin->Devices()) {
    if (info.ordinal == ordinal) {
      int64_t free_bytes = 0, total = 0;
      if (KernelStatus s = plugin->MemoryBytes(ordinal, &free_bytes, &total); !s.ok()) {
        return absl::UnavailableError(absl::StrCat("CUDA: ", s.error));
      }
      // Leaves a tenth for the libraries' own workspaces.
      const int64_t usable = free_bytes / 10 * 9;
      const int64_t limit = memory_limit > 0 ? std::min(memory_limit, usable) : usable;
      auto device = std::make_unique<CudaDevice>(plugin, info, limit);
      return std::unique_ptr<Device>(std::move(device));
    }
    absl::StrAppend(&present, present.empty() ? "" : ", ", info.ordinal, " (", info.model, ")");
  }
  return absl::UnavailableError(
      absl::StrCat("there is no GPU ", ordinal, "; present: ", present.empty() ? "none" : present));
}

CudaPlugin* CudaPluginOf(const Device& device, int* ordinal) {
  const auto* cuda = dynamic_cast<const CudaDevice*>(&device);
  if (cuda == nullptr) return nullptr;
  *ordinal = cuda->ordinal();
  return cuda->plugin();
}

}  // namespace espalier
