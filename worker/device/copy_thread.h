// Copies host memory, and reads files, in a thread of its own, one after the other.
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
  ~CopyThread();  // when all copies have ended
  CopyThread(const CopyThread&) = delete;
  CopyThread& operator=(const CopyThread&) = delete;

  // Returns at once; the memory must stay as it is until Wait(ticket) has returned.
  uint64_t Begin(void* destination, const void* source, int64_t bytes);
  // The same with a copy of any kind.
  uint64_t Begin(std::function<absl::Status()> copy);
  // Until this copy, and all that were begun before it, have ended. This copy's error, the first
  // time that it is asked for.
  absl::Status Wait(uint64_t ticket);

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<absl::Status()>> waiting_;
  std::map<uint64_t, absl::Status> failed_;  // by ticket
  uint64_t begun_ = 0, ended_ = 0;
  bool stopping_ = false;
  std::thread thread_;  // from the first copy on
};

}  // namespace espalier
