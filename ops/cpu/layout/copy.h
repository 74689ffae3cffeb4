// Kernels that only copy bytes.
#pragma once

#include <cstring>
#include <string>

#include "ops/cpu/threading/parallel.h"
#include "ops/kernel/kernel.h"

namespace espalier {

inline void CopyBytes(const void* source, void* target, int64_t bytes) {
  if (source == target) return;
  ParallelFor(bytes / 4 + 1, 1, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * 4, last = std::min(bytes, end * 4);
    if (first < last) {
      std::memcpy(static_cast<char*>(target) + first, static_cast<const char*>(source) + first,
                  last - first);
    }
  });
}

// y = x; elements keep their order.
inline std::unique_ptr<Kernel> MakeCopy(const KernelSpec&, std::string*) {
  return MakeKernel([](const KernelArgs& args) {
    CopyBytes(args.inputs[0].data, args.outputs[0].data, args.outputs[0].spec.bytes());
    return KernelStatus::Ok();
  });
}

// Adds kernels `name`, y = x, and `name`_grad, dx = dy.
inline void AddCopy(KernelRegistry& registry, const std::string& name) {
  registry.Add(name, MakeCopy);
  registry.Add(name + "_grad", MakeCopy);
}

}  // namespace espalier
