#include "server/jobs/search_threads.h"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

namespace espalier {

SearchThreads::SearchThreads(int threads)
    : threads_(threads > 0 ? threads
                           : std::max(1, static_cast<int>(std::thread::hardware_concurrency()))),
      free_(threads_ - 1) {}

bool SearchThreads::TakeOne() {
  absl::MutexLock lock(&mutex_);
  if (free_ == 0) return false;
  --free_;
  return true;
}

void SearchThreads::GiveBack() {
  absl::MutexLock lock(&mutex_);
  ++free_;
}

void SearchThreads::ForEach(int count, const std::function<void(int)>& work) {
  std::atomic<int> next = 0;
  const auto run = [&] {
    for (int i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < count && TakeOne(); ++i) {
    try {
      // A helper that is done here is free for a nested search.
      helpers.emplace_back([&] {
        run();
        GiveBack();
      });
      // no more threads available: the existing ones do the rest
    } catch (const std::system_error&) {
      GiveBack();
      break;
    }
  }
  run();
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace espalier
