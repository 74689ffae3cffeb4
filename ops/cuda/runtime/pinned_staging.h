// Stages small copies between pageable host memory and the device in page-locked (pinned) memory:
// otherwise the driver waits for the device in every copy.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/kernel/kernel.h"

namespace espalier {

// Used by one thread at a time, with its device current.
class PinnedStaging {
 public:
  static constexpr int64_t kMaxBytes = int64_t{1} << 20;  // bytes of one copy

  PinnedStaging() = default;
  ~PinnedStaging();
  PinnedStaging(const PinnedStaging&) = delete;
  PinnedStaging& operator=(const PinnedStaging&) = delete;

  // Enqueues the copy; the source may be reused on return.
  KernelStatus ToDevice(void* destination, const void* source, int64_t bytes, cudaStream_t stream);
  // Waits for the stream.
  KernelStatus ToHost(void* destination, const void* source, int64_t bytes, cudaStream_t stream);

 private:
  // Double buffer of copies to the device: a half is reused when all copies from it have ended.
  struct Half {
    char* data = nullptr;
    cudaEvent_t ended = nullptr;
    bool pending = false;
  };
  KernelStatus Prepare();

  Half halves_[2];
  int half_ = 0;
  int64_t used_ = 0;  // of halves_[half_]
  char* from_device_ = nullptr;
};

}  // namespace espalier
