// Kernels that only copy the bytes of their input.
#pragma once

#include <string>

#include "ops/cuda/runtime/cuda_status.h"
#include "ops/cuda/runtime/register.h"

namespace espalier {

inline KernelStatus CopyWhole(const TensorView& from, const TensorView& to, void* stream,
                              const char* op) {
  if (!to.present() || from.data == to.data || to.num_elements() == 0) return KernelStatus::Ok();
  return CudaStatus(cudaMemcpyAsync(to.data, from.data, static_cast<size_t>(to.spec.bytes()),
                                    cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream)),
                    op);
}

// Returns the factory of the kernel y = x of operator `name`, which must be a literal.
inline KernelFactory CopyFactory(const char* name) {
  return [name](const KernelSpec&, std::string*) {
    return MakeKernel([name](const KernelArgs& args) {
      return CopyWhole(args.inputs[0], args.outputs[0], args.stream, name);
    });
  };
}

// Adds kernels `name`, y = x, and `name`_grad, dx = dy. `name` must be a literal.
inline void AddCopy(KernelRegistry& registry, const char* name) {
  const KernelFactory factory = CopyFactory(name);
  registry.Add(name, factory);
  registry.Add(std::string(name) + "_grad", factory);
}

}  // namespace espalier
