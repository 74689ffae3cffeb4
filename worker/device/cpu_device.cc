#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/machine_memory.h"
#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/layout/copy_box.h"
#include "ops/cpu/onednn/instruction_set.h"
#include "ops/cpu/register_all.h"
#include "ops/cpu/threading/parallel.h"
#include "ops/cpu/threading/thread_team.h"
#include "worker/device/copy_thread.h"
#include "worker/device/device.h"

namespace espalier {
namespace {

// Smallest allocation for which huge pages are requested.
constexpr int64_t kHugePageThreshold = 32 << 20;

// Bytes of a copy that one thread takes: a huge page.
constexpr int64_t kCopyPiece = 2 << 20;

std::string CpuModel() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "CPU";
}

template <typename T>
void FillWith(void* destination, int64_t count, T value) {
  std::fill_n(static_cast<T*>(destination), count, value);
}

// Host memory that returns its bytes to the budget.
class CountedHostMemory : public HostMemory {
 public:
  CountedHostMemory(std::unique_ptr<HostMemory> memory, std::shared_ptr<MemoryBudget> budget)
      : HostMemory(memory->data(), memory->bytes()),
        memory_(std::move(memory)),
        budget_(std::move(budget)) {}
  ~CountedHostMemory() override { budget_->Return(bytes()); }

 private:
  const std::unique_ptr<HostMemory> memory_;
  const std::shared_ptr<MemoryBudget> budget_;
};

class CpuDevice : public Device {
 public:
  explicit CpuDevice(const CpuDeviceOptions& options)
      : budget_(options.budget != nullptr
                    ? options.budget
                    : std::make_shared<MemoryBudget>(
                          options.memory_limit > 0 ? options.memory_limit : DefaultMemoryLimit())),
        shared_(options.budget != nullptr),
        swap_folder_(options.swap_folder) {
    const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    description_.set_kind(v1::Device::CPU);
    description_.set_model(CpuModel());
    description_.set_threads(options.threads > 0 ? options.threads : cores);
    description_.set_host_cores(cores);
    description_.set_memory_bytes(budget_->limit());
    RegisterCpuKernels(kernels_);
  }

  const v1::Device& description() const override { return description_; }
  std::string instruction_set() const override { return CpuInstructionSet(); }
  bool is_host() const override { return true; }
  const KernelRegistry& kernels() const override { return kernels_; }

  absl::Status EnterThread(KernelThreads threads) override {
    // OpenMP stores this per thread; oneDNN's loops, started from this thread, use it.
    omp_set_num_threads(description_.threads());
    UseOwnTeam(threads == KernelThreads::kThreadTeam);
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(int64_t bytes) override {
    if (bytes < 0) return absl::InvalidArgumentError("negative allocation");
    if (!budget_->Take(bytes)) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "out of memory: ", bytes, " bytes asked for, ", budget_->left(), " of ", budget_->limit(),
          shared_ ? " left, which the models in this process share (--serving-memory)"
                  : " left; give the worker more with --memory-limit or use more workers"));
    }
    // Anonymous pages are zero and use physical memory once touched.
    void* data = nullptr;
    if (bytes > 0) {
      data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (data == MAP_FAILED) {
        budget_->Return(bytes);
        return absl::ResourceExhaustedError(
            absl::StrCat("the system has no ", bytes, " bytes of memory: ", std::strerror(errno)));
      }
      // Steps stream through weights: huge pages reduce TLB misses. Only a hint.
      if (bytes >= kHugePageThreshold)
        (void)madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);
    }
    return std::make_unique<DeviceMemory>(this, data, bytes);
  }

  absl::Status CopyToDevice(void* destination, const void* host, int64_t bytes) override {
    // On all threads, because the kernel clears a page at its first use, which takes longer than
    // the copy. Small copies are one piece, on this thread.
    auto* const to = static_cast<char*>(destination);
    const auto* const from = static_cast<const char*>(host);
    ParallelBlocks(bytes, kCopyPiece, [&](int64_t begin, int64_t end) {
      std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
    });
    return absl::OkStatus();
  }
  absl::Status CopyToHost(void* host, const void* source, int64_t bytes) override {
    if (bytes > 0) std::memcpy(host, source, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }
  absl::Status CopyBox(const BoxCopy& copy) override {
    CopyBoxOnHost(copy);
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<HostMemory>> AllocateHost(int64_t bytes) override {
    // A limit covers a worker's programs only; a shared budget covers all memory.
    if (!shared_ || !swap_folder_.empty()) return MapHostMemory(bytes, swap_folder_);
    if (!budget_->Take(bytes)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("out of memory for weights that stream in: ", bytes, " bytes asked for, ",
                       budget_->left(), " of ", budget_->limit(),
                       " left, which the models in this process share (--serving-memory); "
                       "--serving-swap-dir=FOLDER puts them on a disk"));
    }
    absl::StatusOr<std::unique_ptr<HostMemory>> memory = MapHostMemory(bytes, swap_folder_);
    if (!memory.ok()) {
      budget_->Return(bytes);
      return memory.status();
    }
    return std::make_unique<CountedHostMemory>(*std::move(memory), budget_);
  }
  absl::StatusOr<uint64_t> BeginCopyToHost(void* host, const void* source, int64_t bytes) override {
    return copies_.Begin(host, source, bytes);
  }
  absl::StatusOr<uint64_t> BeginCopyToDevice(void* destination, const void* host,
                                             int64_t bytes) override {
    return copies_.Begin(destination, host, bytes);
  }
  absl::StatusOr<uint64_t> BeginReadToDevice(void* destination,
                                             const std::vector<FileRange>& ranges,
                                             int64_t bytes) override {
    return copies_.Begin([=, &ranges] { return ReadRanges(ranges, bytes, destination); });
  }
  absl::Status AwaitCopy(uint64_t ticket) override { return copies_.Wait(ticket); }

  absl::Status Fill(void* destination, DType dtype, int64_t count, double value) override {
    switch (dtype) {
      case DType::kF32:
        FillWith(destination, count, static_cast<float>(value));
        break;
      case DType::kBF16:
        FillWith(destination, count, F32ToBF16(static_cast<float>(value)));
        break;
      case DType::kF16:
        FillWith(destination, count, F32ToF16(static_cast<float>(value)));
        break;
      case DType::kI32:
        FillWith(destination, count, static_cast<int32_t>(value));
        break;
      case DType::kI64:
        FillWith(destination, count, static_cast<int64_t>(value));
        break;
      case DType::kBool:
        FillWith(destination, count, static_cast<uint8_t>(value != 0));
        break;
      case DType::kI8:
        FillWith(destination, count, static_cast<int8_t>(value));
        break;
      case DType::kU8:
        FillWith(destination, count, static_cast<uint8_t>(value));
        break;
      case DType::kInvalid:
        return absl::InvalidArgumentError("fill of a tensor without a type");
    }
    return absl::OkStatus();
  }

 protected:
  void Free(void* data, int64_t bytes) override {
    if (data != nullptr) munmap(data, static_cast<size_t>(bytes));
    budget_->Return(bytes);
  }

 private:
  v1::Device description_;
  KernelRegistry kernels_;
  const std::shared_ptr<MemoryBudget> budget_;
  const bool shared_;
  const std::string swap_folder_;
  CopyThread copies_;
};

}  // namespace

DeviceMemory::~DeviceMemory() { device_->Free(data_, bytes_); }

std::unique_ptr<Device> NewCpuDevice(const CpuDeviceOptions& options) {
  return std::make_unique<CpuDevice>(options);
}

}  // namespace espalier
