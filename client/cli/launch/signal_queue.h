// The signals that end a batch job, or tell it that its time is nearly over.
#pragma once

#include <signal.h>

namespace espalier {

// While it lives, SIGTERM, SIGINT, SIGHUP and SIGUSR1 do not end this process, but wait for a Wait.
// Those that nobody has waited for are gone with it. Make it before any thread, for they inherit
// the mask. One per process.
class SignalQueue {
 public:
  SignalQueue();
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  // Returns the next signal, or 0 after so many milliseconds.
  int Wait(int milliseconds);

 private:
  sigset_t signals_;
  sigset_t before_;
};

}  // namespace espalier
