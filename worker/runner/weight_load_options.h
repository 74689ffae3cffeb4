// Loading weights into a program while others use its device. The calling thread reads files,
// converts and packs; the device is needed for one chunk at a time only.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "base/file_system.h"
#include "worker/device/device_thread.h"
#include "worker/executor/executor.h"

namespace espalier {

struct WeightLoadOptions {
  FileSystem* files = nullptr;      // null: the machine's
  std::function<bool()> cancelled;  // optional: checked before each chunk
  // Runs program creation and writes to its memory. Null: on the calling thread.
  RunOnDevice turn;

  absl::Status Turn(const std::function<absl::Status()>& work) const {
    return turn ? turn(work) : work();
  }
  // Returns Cancelled if `cancelled` returns true.
  absl::Status CheckCancelled() const {
    if (cancelled && cancelled()) return absl::CancelledError("stopped while loading");
    return absl::OkStatus();
  }
  // Runs Executor::WriteBuffer on the device. Errors as CheckCancelled.
  absl::Status Write(Executor& executor, int buffer, const void* host, int64_t bytes,
                     int64_t offset = 0) const {
    if (absl::Status s = CheckCancelled(); !s.ok()) return s;
    return Turn([&] { return executor.WriteBuffer(buffer, host, bytes, offset); });
  }
};

}  // namespace espalier
