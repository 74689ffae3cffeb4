#include "server/inference/remote/result_prefetcher.h"

#include <utility>

namespace espalier {

ResultPrefetcher::ResultPrefetcher(ServingStream* stream)
    : stream_(stream), thread_([this] { Run(); }) {}

ResultPrefetcher::~ResultPrefetcher() { thread_.join(); }

void ResultPrefetcher::Run() {
  for (;;) {
    v1::ServingResult result;
    const bool came = stream_->Read(&result);
    absl::MutexLock lock(&mutex_);
    if (!came) {
      ended_ = true;
      return;
    }
    results_.push_back(std::move(result));
  }
}

bool ResultPrefetcher::Read(v1::ServingResult* result) {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &ResultPrefetcher::Ready));
  if (results_.empty()) return false;
  *result = std::move(results_.front());
  results_.pop_front();
  return true;
}

}  // namespace espalier
