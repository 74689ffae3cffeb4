#include "ops/cpu/workspace/kernel_workspace.h"

#include <omp.h>

#include <exception>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "ops/cpu/register_all.h"

namespace espalier {
namespace {

constexpr size_t kMostAnswers = 1 << 16;

// Sets the calling thread's number of threads, which kernels read when they are made.
class ThreadsForKernels {
 public:
  explicit ThreadsForKernels(int threads) : before_(omp_get_max_threads()) {
    omp_set_num_threads(threads);
  }
  ~ThreadsForKernels() { omp_set_num_threads(before_); }
  ThreadsForKernels(const ThreadsForKernels&) = delete;
  ThreadsForKernels& operator=(const ThreadsForKernels&) = delete;

 private:
  const int before_;
};

template <typename T>
void AppendBytes(const T& value, std::string* key) {
  static_assert(std::is_trivially_copyable_v<T>);
  key->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void AppendValue(const std::string& value, std::string* key) {
  AppendBytes(value.size(), key);
  key->append(value);
}

template <typename T>
void AppendValue(const T& value, std::string* key) {
  AppendBytes(value, key);
}

template <typename T>
void AppendValue(const std::vector<T>& values, std::string* key) {
  AppendBytes(values.size(), key);
  for (const T& value : values) AppendBytes(value, key);
}

void AppendSpecs(const std::vector<TensorSpec>& specs, std::string* key) {
  AppendBytes(specs.size(), key);
  for (const TensorSpec& spec : specs) {
    AppendBytes(spec.dtype, key);
    for (const Dims* dims : {&spec.dims, &spec.offset, &spec.global}) {
      AppendBytes(dims->size(), key);
      for (int64_t dim : *dims) AppendBytes(dim, key);
    }
  }
}

std::string KeyOf(const KernelSpec& spec, int threads) {
  std::string key;
  AppendBytes(threads, &key);
  AppendBytes(spec.batch_invariant, &key);
  AppendValue(spec.op, &key);
  for (const auto& [name, value] : spec.attributes.values()) {
    AppendValue(name, &key);
    AppendBytes(value.index(), &key);
    std::visit([&](const auto& v) { AppendValue(v, &key); }, value);
  }
  AppendSpecs(spec.inputs, &key);
  AppendSpecs(spec.outputs, &key);
  return key;
}

}  // namespace

CpuKernelWorkspace::CpuKernelWorkspace() { RegisterCpuKernels(kernels_); }

std::optional<int64_t> CpuKernelWorkspace::Bytes(const KernelSpec& spec, int threads) {
  const std::string key = KeyOf(spec, threads);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (const auto found = answers_.find(key); found != answers_.end()) return found->second;
  }
  std::optional<int64_t> bytes;
  const ThreadsForKernels as_there(threads);
  std::string error;
  try {
    const std::unique_ptr<Kernel> kernel = kernels_.Create(spec, &error);
    if (kernel != nullptr) bytes = static_cast<int64_t>(kernel->workspace_bytes());
  } catch (const std::exception&) {
    // The executor reports it with the node's name when it makes the kernel.
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (answers_.size() >= kMostAnswers) answers_.clear();
  answers_[key] = bytes;
  return bytes;
}

}  // namespace espalier
