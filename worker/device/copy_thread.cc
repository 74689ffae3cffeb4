#include "worker/device/copy_thread.h"

#include <cstring>

namespace espalier {

CopyThread::~CopyThread() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

uint64_t CopyThread::Begin(void* destination, const void* source, int64_t bytes) {
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  uint64_t ticket = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back({destination, source, bytes});
    ticket = ++begun_;
  }
  changed_.notify_all();
  return ticket;
}

void CopyThread::Wait(uint64_t ticket) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return ended_ >= ticket; });
}

void CopyThread::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const Copy copy = waiting_.front();
    waiting_.pop_front();
    lock.unlock();
    if (copy.bytes > 0) {
      std::memcpy(copy.destination, copy.source, static_cast<size_t>(copy.bytes));
    }
    lock.lock();
    ++ended_;
    changed_.notify_all();
  }
}

}  // namespace espalier
