// One thread for all that runs on a device, for those who share it: a device is used by one thread
// at a time, and threads of its own for each user would have OpenMP keep idle ones beside them.
#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace espalier {

// Runs `work` where a device may be used, and returns its status when it has ended.
using RunOnDevice = std::function<absl::Status(const std::function<absl::Status()>& work)>;

// Thread-safe.
class DeviceThread {
 public:
  DeviceThread() = default;
  ~DeviceThread();  // when all that was given to it has ended
  DeviceThread(const DeviceThread&) = delete;
  DeviceThread& operator=(const DeviceThread&) = delete;

  // Runs `work` there, behind what was given to it before, and returns its status when it has
  // ended. Not from within `work`.
  absl::Status Run(const std::function<absl::Status()>& work);

 private:
  struct Task {
    const std::function<absl::Status()>* work = nullptr;
    absl::Status status;
    bool done = false;
  };

  void Serve();

  absl::Mutex mutex_;
  std::deque<Task*> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);  // from the first task on
};

}  // namespace espalier
