// Copies host memory in a thread of its own, one copy after the other.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>

namespace espalier {

class CopyThread {
 public:
  CopyThread() = default;
  ~CopyThread();  // when all copies have ended
  CopyThread(const CopyThread&) = delete;
  CopyThread& operator=(const CopyThread&) = delete;

  // Returns at once; the memory must stay as it is until Wait(ticket) has returned.
  uint64_t Begin(void* destination, const void* source, int64_t bytes);
  // Until this copy, and all that were begun before it, have ended.
  void Wait(uint64_t ticket);

 private:
  struct Copy {
    void* destination;
    const void* source;
    int64_t bytes;
  };
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Copy> waiting_;
  uint64_t begun_ = 0, ended_ = 0;
  bool stopping_ = false;
  std::thread thread_;  // from the first copy on
};

}  // namespace espalier
