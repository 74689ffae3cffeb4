#include "client/cli/launch/signal_queue.h"

#include <ctime>
#include <initializer_list>

namespace espalier {

SignalQueue::SignalQueue() {
  sigemptyset(&signals_);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) sigaddset(&signals_, signal);
  pthread_sigmask(SIG_BLOCK, &signals_, &before_);
}

SignalQueue::~SignalQueue() {
  // One that comes while its owner ends would otherwise end the process now, without exit code and
  // message.
  while (Wait(0) != 0) {
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

int SignalQueue::Wait(int milliseconds) {
  const timespec time = {milliseconds / 1000, (milliseconds % 1000) * 1'000'000L};
  const int signal = sigtimedwait(&signals_, nullptr, &time);
  return signal > 0 ? signal : 0;
}

}  // namespace espalier
