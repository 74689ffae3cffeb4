#include "worker/collective/in_process_communicator.h"

#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "worker/collective/host_communicator.h"

namespace espalier {
namespace {

struct Mailboxes {
  using Key = std::tuple<int, int, uint64_t>;  // from, to, tag

  absl::Mutex mutex;
  absl::CondVar arrived;
  std::map<Key, std::deque<std::string>> messages ABSL_GUARDED_BY(mutex);
  bool aborted ABSL_GUARDED_BY(mutex) = false;
  std::string reason ABSL_GUARDED_BY(mutex);
};

class InProcessCommunicator : public HostCommunicator {
 public:
  InProcessCommunicator(int rank, int size, absl::Duration timeout,
                        std::shared_ptr<Mailboxes> boxes)
      : rank_(rank), size_(size), timeout_(timeout), boxes_(std::move(boxes)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  absl::Status Send(const void* data, int64_t bytes, int peer, uint64_t tag) override {
    if (peer < 0 || peer >= size_ || peer == rank_) return BadPeer(peer);
    std::string message(static_cast<const char*>(data), static_cast<size_t>(bytes));
    absl::MutexLock lock(&boxes_->mutex);
    if (boxes_->aborted) return absl::CancelledError(boxes_->reason);
    boxes_->messages[{rank_, peer, tag}].push_back(std::move(message));
    boxes_->arrived.SignalAll();
    return absl::OkStatus();
  }

  absl::Status Receive(void* data, int64_t bytes, int peer, uint64_t tag) override {
    if (peer < 0 || peer >= size_ || peer == rank_) return BadPeer(peer);
    const absl::Time deadline = absl::Now() + timeout_;
    std::string message;
    {
      absl::MutexLock lock(&boxes_->mutex);
      std::deque<std::string>& queue = boxes_->messages[{peer, rank_, tag}];
      while (queue.empty() && !boxes_->aborted) {
        if (boxes_->arrived.WaitWithDeadline(&boxes_->mutex, deadline) && queue.empty()) {
          return absl::DeadlineExceededError(
              absl::StrCat("rank ", peer, " sent nothing for ", absl::FormatDuration(timeout_)));
        }
      }
      if (boxes_->aborted) return absl::CancelledError(boxes_->reason);
      message = std::move(queue.front());
      queue.pop_front();
    }
    if (static_cast<int64_t>(message.size()) != bytes) {
      return absl::InternalError(absl::StrCat("rank ", peer, " sent ", message.size(),
                                              " bytes where ", bytes, " were expected"));
    }
    if (bytes > 0) std::memcpy(data, message.data(), message.size());
    return absl::OkStatus();
  }

  void Abort(const std::string& reason) override {
    absl::MutexLock lock(&boxes_->mutex);
    if (boxes_->aborted) return;
    boxes_->aborted = true;
    boxes_->reason = reason;
    boxes_->arrived.SignalAll();
  }

 private:
  absl::Status BadPeer(int peer) const {
    return absl::InvalidArgumentError(
        absl::StrCat("no peer ", peer, " for rank ", rank_, " of ", size_));
  }

  const int rank_;
  const int size_;
  const absl::Duration timeout_;
  const std::shared_ptr<Mailboxes> boxes_;
};

class InProcessStore : public RendezvousStore {
 public:
  absl::Status Set(const std::string& key, const std::string& value) override {
    absl::MutexLock lock(&mutex_);
    values_[key] = value;
    changed_.SignalAll();
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) override {
    const absl::Time deadline = absl::Now() + timeout;
    absl::MutexLock lock(&mutex_);
    while (values_.count(key) == 0) {
      if (changed_.WaitWithDeadline(&mutex_, deadline) && values_.count(key) == 0) {
        return absl::DeadlineExceededError(absl::StrCat("no rank has set '", key, "'"));
      }
    }
    return values_[key];
  }

 private:
  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::map<std::string, std::string> values_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> NewInProcessCommunicators(int size,
                                                                     absl::Duration timeout) {
  auto boxes = std::make_shared<Mailboxes>();
  std::vector<std::unique_ptr<Communicator>> all;
  for (int rank = 0; rank < size; ++rank) {
    all.push_back(std::make_unique<InProcessCommunicator>(rank, size, timeout, boxes));
  }
  return all;
}

std::unique_ptr<RendezvousStore> NewInProcessStore() { return std::make_unique<InProcessStore>(); }

}  // namespace espalier
