// The connection of a job's rank to its peers, and whether the job was aborted.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "worker/collective/communicator.h"

namespace espalier {

// Thread-safe.
class JobPeers {
 public:
  // Connects; gives up when `cancelled` returns true.
  using Connector =
      std::function<absl::StatusOr<std::unique_ptr<Communicator>>(std::function<bool()> cancelled)>;

  // Calls `connect` unless that was done. Returns whether it was called, or Cancelled after Abort.
  absl::StatusOr<bool> Connect(const Connector& connect);
  // Null before Connect and after Take.
  Communicator* communicator() const;
  std::unique_ptr<Communicator> Take();

  // Ends waits for peers, and makes Cancelled return an error with the first reason.
  void Abort(const std::string& reason);
  absl::Status Cancelled() const;

 private:
  mutable absl::Mutex mutex_;
  bool aborted_ ABSL_GUARDED_BY(mutex_) = false;
  std::string reason_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Communicator> communicator_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
