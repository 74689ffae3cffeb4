#include "worker/device/copy_thread.h"

#include <cstring>
#include <utility>

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
  return Begin([=] {
    if (bytes > 0) std::memcpy(destination, source, static_cast<size_t>(bytes));
    return absl::OkStatus();
  });
}

uint64_t CopyThread::Begin(std::function<absl::Status()> copy) {
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  uint64_t ticket = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back(std::move(copy));
    ticket = ++begun_;
  }
  changed_.notify_all();
  return ticket;
}

absl::Status CopyThread::Wait(uint64_t ticket) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return ended_ >= ticket; });
  const auto failed = failed_.find(ticket);
  if (failed == failed_.end()) return absl::OkStatus();
  absl::Status status = failed->second;
  failed_.erase(failed);
  return status;
}

void CopyThread::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const std::function<absl::Status()> copy = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    absl::Status status = copy();
    lock.lock();
    ++ended_;
    if (!status.ok()) failed_.emplace(ended_, std::move(status));
    changed_.notify_all();
  }
}

}  // namespace espalier
