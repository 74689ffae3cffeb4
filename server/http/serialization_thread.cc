#include "server/http/serialization_thread.h"

#include <utility>

namespace espalier {

SerializationThread::SerializationThread() : thread_([this] { Work(); }) {}

SerializationThread::~SerializationThread() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void SerializationThread::Run(std::function<void()> work) {
  absl::MutexLock lock(&mutex_);
  waiting_.push_back(std::move(work));
}

void SerializationThread::Work() {
  for (;;) {
    std::function<void()> work;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &SerializationThread::HasWork));
      if (waiting_.empty()) return;
      work = std::move(waiting_.front());
      waiting_.pop_front();
    }
    work();
  }
}

}  // namespace espalier
