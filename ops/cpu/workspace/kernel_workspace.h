// Asks CPU kernels for the workspace that they need, without running them. For planners: a kernel
// says the same on any machine whose processor has the same instruction set.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "ops/kernel/kernel.h"

namespace espalier {

// Thread-safe. Remembers answers.
class CpuKernelWorkspace {
 public:
  CpuKernelWorkspace();

  // Returns Kernel::workspace_bytes of the kernel for `spec`, run by `threads` threads, or nothing
  // if no kernel supports it.
  std::optional<int64_t> Bytes(const KernelSpec& spec, int threads);

 private:
  KernelRegistry kernels_;
  std::mutex mutex_;
  std::map<std::string, std::optional<int64_t>> answers_;
};

}  // namespace espalier
