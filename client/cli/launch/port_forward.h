// `kubectl port-forward` beside a command.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace espalier {

// Forwards a port of this host to one of a service while it lives, also after the service's pod was
// replaced: kubectl ends then, and is started again.
class PortForward {
 public:
  // `command`: kubectl and its arguments but the ports. Unavailable with what kubectl said if it
  // does not forward.
  static absl::StatusOr<std::unique_ptr<PortForward>> Start(std::vector<std::string> command,
                                                            int remote_port);
  ~PortForward();

  int port() const;  // of this host

 private:
  PortForward(std::vector<std::string> command, int remote_port)
      : command_(std::move(command)), remote_port_(remote_port) {}
  void Loop();

  const std::vector<std::string> command_;
  const int remote_port_;
  mutable absl::Mutex mutex_;
  absl::CondVar changed_;
  int port_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);  // of the first start
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace espalier
