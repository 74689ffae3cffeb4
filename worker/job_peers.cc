#include "worker/job_peers.h"

#include <utility>

namespace espalier {

absl::StatusOr<bool> JobPeers::Connect(const Connector& connect) {
  if (communicator() != nullptr) return false;
  absl::StatusOr<std::unique_ptr<Communicator>> made =
      connect([this] { return !Cancelled().ok(); });
  if (absl::Status s = Cancelled(); !s.ok()) return s;
  if (!made.ok()) return made.status();
  absl::MutexLock lock(&mutex_);
  communicator_ = *std::move(made);
  if (aborted_) communicator_->Abort(reason_);
  return true;
}

Communicator* JobPeers::communicator() const {
  absl::MutexLock lock(&mutex_);
  return communicator_.get();
}

std::unique_ptr<Communicator> JobPeers::Take() {
  absl::MutexLock lock(&mutex_);
  return std::move(communicator_);
}

void JobPeers::Abort(const std::string& reason) {
  absl::MutexLock lock(&mutex_);
  if (!aborted_) reason_ = reason;
  aborted_ = true;
  if (communicator_ != nullptr) communicator_->Abort(reason);
}

absl::Status JobPeers::Cancelled() const {
  absl::MutexLock lock(&mutex_);
  return aborted_ ? absl::CancelledError(reason_) : absl::OkStatus();
}

}  // namespace espalier
