#include "server/inference/remote/result_reader.h"

#include <utility>

namespace espalier {

ResultReader::ResultReader(ServingStream* stream) : stream_(stream), thread_([this] { Run(); }) {}

ResultReader::~ResultReader() { thread_.join(); }

void ResultReader::Run() {
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

bool ResultReader::Read(v1::ServingResult* result) {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &ResultReader::Ready));
  if (results_.empty()) return false;
  *result = std::move(results_.front());
  results_.pop_front();
  return true;
}

}  // namespace espalier
