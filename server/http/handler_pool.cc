#include "server/http/handler_pool.h"

#include <algorithm>
#include <utility>

namespace espalier {
namespace {

constexpr int kMinThreads = 4;

}  // namespace

HandlerPool::HandlerPool(int threads, size_t max_waiting, size_t max_bytes)
    : max_waiting_(max_waiting), max_bytes_(max_bytes) {
  if (threads == 0) {
    threads = std::max(kMinThreads, static_cast<int>(std::thread::hardware_concurrency()));
  }
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
}

HandlerPool::~HandlerPool() { Stop(); }

bool HandlerPool::Add(size_t bytes, std::function<void()> handler) {
  absl::MutexLock lock(&mutex_);
  if (stopped_ || waiting_.size() >= max_waiting_ || bytes > max_bytes_ - bytes_) return false;
  waiting_.push_back({bytes, std::move(handler)});
  bytes_ += bytes;
  return true;
}

void HandlerPool::Stop() {
  std::deque<Waiting> dropped;  // destroyed after the lock is released
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    dropped.swap(waiting_);
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void HandlerPool::Work() {
  for (;;) {
    std::function<void()> handler;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &HandlerPool::HasWork));
      if (stopped_) return;
      handler = std::move(waiting_.front().handler);
      bytes_ -= waiting_.front().bytes;
      waiting_.pop_front();
    }
    handler();
  }
}

}  // namespace espalier
