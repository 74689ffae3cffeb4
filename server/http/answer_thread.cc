#include "server/http/answer_thread.h"

#include <utility>

namespace espalier {

AnswerThread::AnswerThread() : thread_([this] { Work(); }) {}

AnswerThread::~AnswerThread() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void AnswerThread::Run(std::function<void()> work) {
  absl::MutexLock lock(&mutex_);
  waiting_.push_back(std::move(work));
}

void AnswerThread::Work() {
  for (;;) {
    std::function<void()> work;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &AnswerThread::HasNews));
      if (waiting_.empty()) return;
      work = std::move(waiting_.front());
      waiting_.pop_front();
    }
    work();
  }
}

}  // namespace espalier
