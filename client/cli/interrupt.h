// Signal handling for commands that clean up before they end.
#pragma once

#include <signal.h>

#include <functional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace espalier {

// While it lives, the first SIGINT, SIGTERM or SIGHUP calls `interrupted` on a separate thread
// instead of ending the process; a second one of the same kind ends it. Ignored signals stay
// ignored. One instance per process.
class InterruptWatch {
 public:
  explicit InterruptWatch(std::function<void()> interrupted);
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  bool interrupted() const;

 private:
  struct Before {
    int signal;
    struct sigaction action;
  };
  std::vector<Before> before_;
  std::thread thread_;
};

// The status of a command ended by a signal: exit code 130.
absl::Status InterruptedError(absl::string_view message);
bool IsInterrupted(const absl::Status& status);

}  // namespace espalier
