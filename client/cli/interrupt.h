// Ctrl-C for commands that have to put something away first.
#pragma once

#include <signal.h>

#include <functional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace espalier {

// As long as it lives, the first SIGINT, SIGTERM or SIGHUP calls `interrupted`, on a thread of its
// own, instead of ending the process; a second one of the same ends it. Signals that are ignored
// stay so. One at a time in a process.
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

// What a command returns that was ended by a signal: exit code 130.
absl::Status InterruptedError(absl::string_view message);
bool IsInterrupted(const absl::Status& status);

}  // namespace espalier
