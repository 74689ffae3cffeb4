// How weights come into a program while others use its device: files are read, and numbers
// converted and packed, by the calling thread; the device is needed for one piece at a time only.
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
  std::function<bool()> cancelled;  // optional: asked before each piece
  // By which the program is made and its memory written. Null: from the calling thread.
  RunOnDevice turn;

  absl::Status Turn(const std::function<absl::Status()>& work) const {
    return turn ? turn(work) : work();
  }
  // Executor::WriteBuffer in a turn of its own; Cancelled once nobody wants the weights any more.
  absl::Status Write(Executor& executor, int buffer, const void* host, int64_t bytes,
                     int64_t offset = 0) const {
    if (cancelled && cancelled()) return absl::CancelledError("stopped while loading");
    return Turn([&] { return executor.WriteBuffer(buffer, host, bytes, offset); });
  }
};

}  // namespace espalier
