#include "worker/device/device_thread.h"

#include <utility>

namespace espalier {

DeviceThread::~DeviceThread() {
  std::thread thread;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

absl::Status DeviceThread::Run(const std::function<absl::Status()>& work) {
  Task task;
  task.work = &work;
  absl::MutexLock lock(&mutex_);
  if (!thread_.joinable()) thread_ = std::thread([this] { Loop(); });
  waiting_.push_back(&task);
  mutex_.Await(absl::Condition(&task.done));
  return std::move(task.status);
}

void DeviceThread::Loop() {
  absl::MutexLock lock(&mutex_);
  const auto due = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !waiting_.empty();
  };
  while (true) {
    mutex_.Await(absl::Condition(&due));
    if (waiting_.empty()) return;
    Task* const task = waiting_.front();
    waiting_.pop_front();
    mutex_.Unlock();
    absl::Status status = (*task->work)();
    mutex_.Lock();
    task->status = std::move(status);
    task->done = true;
  }
}

}  // namespace espalier
