// One thread that runs all work of a device shared by several users: a device is used by one thread
// at a time, and with a thread for each user OpenMP would keep an idle team for each.
#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace espalier {

// Runs `work` where the device may be used. Returns its status when it has ended.
using RunOnDevice = std::function<absl::Status(const std::function<absl::Status()>& work)>;

// Thread-safe.
class DeviceThread {
 public:
  DeviceThread() = default;
  ~DeviceThread();  // waits for all work
  DeviceThread(const DeviceThread&) = delete;
  DeviceThread& operator=(const DeviceThread&) = delete;

  // Runs `work` on the thread after earlier work. Returns its status when it has ended. Must not be
  // called from `work`.
  absl::Status Run(const std::function<absl::Status()>& work);

 private:
  struct Task {
    const std::function<absl::Status()>* work = nullptr;
    absl::Status status;
    bool done = false;
  };

  void Loop();

  absl::Mutex mutex_;
  std::deque<Task*> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);  // started by the first task
};

}  // namespace espalier
