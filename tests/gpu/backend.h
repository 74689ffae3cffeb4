// Runs one kernel of one backend on host tensors: CPU kernels directly, CUDA kernels via device
// memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/cuda/runtime/plugin.h"
#include "ops/kernel/kernel.h"

namespace espalier::gpu_check {

// A tensor in host memory, and its position in the whole tensor. No bytes: absent.
struct HostTensor {
  TensorSpec spec;
  std::vector<uint8_t> bytes;

  // At least one byte if present: null data means an absent operand.
  static HostTensor Zeros(const TensorSpec& spec);
  bool present() const { return spec.dtype != DType::kInvalid; }
};

// Returns element i as a number, whatever its type.
double ValueAt(const HostTensor& tensor, int64_t i);
// Stores `value` rounded to the tensor's type.
void SetValue(HostTensor* tensor, int64_t i, double value);

// The members of KernelArgs that are not tensors.
struct RunOptions {
  uint64_t seed = 7;
  uint64_t node_key = 11;
  int64_t step = 3;
  bool training = true;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const KernelRegistry& kernels() const = 0;
  // Makes the kernel, runs it once and reads back all tensors: kernels write some of their inputs.
  // Returns an error, or an empty string.
  virtual std::string Run(const KernelSpec& spec, const RunOptions& options,
                          std::vector<HostTensor>* inputs, std::vector<HostTensor>* outputs) = 0;
};

// Opens the plug-in at `path`, which stays open for the life of the process. Returns null and sets
// *error if it is no plug-in of this version.
CudaPlugin* OpenCudaPlugin(const std::string& path, std::string* error);

std::unique_ptr<Backend> NewCpuBackend();
std::unique_ptr<Backend> NewCudaBackend(CudaPlugin* plugin, int device);

}  // namespace espalier::gpu_check
