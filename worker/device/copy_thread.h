// Thread that copies host memory and reads files asynchronously, in order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "absl/status/status.h"

namespace espalier {

class CopyThread {
 public:
  CopyThread() = default;
  ~CopyThread();  // waits for all copies
  CopyThread(const CopyThread&) = delete;
  CopyThread& operator=(const CopyThread&) = delete;

  // Queues a copy and returns its ticket. The memory must not change until Wait(ticket) returns.
  uint64_t Begin(void* destination, const void* source, int64_t bytes);
  // Queues any function as a copy.
  uint64_t Begin(std::function<absl::Status()> copy);
  // Waits for this copy and all earlier ones. Returns this copy's error, on the first call only.
  absl::Status Wait(uint64_t ticket);

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<absl::Status()>> waiting_;
  std::map<uint64_t, absl::Status> failed_;  // by ticket
  uint64_t begun_ = 0, ended_ = 0;
  bool stopping_ = false;
  std::thread thread_;  // started by the first copy
};

}  // namespace espalier
