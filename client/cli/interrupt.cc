#include "client/cli/interrupt.h"

#include <semaphore.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "absl/strings/cord.h"

namespace espalier {
namespace {

constexpr char kInterrupted[] = "espalier.interrupted";

// Signal handlers may only use lock-free atomics.
std::atomic<bool> caught = false;
sem_t wake;

void OnSignal(int) {
  const int error = errno;
  caught = true;
  sem_post(&wake);
  errno = error;
}

}  // namespace

InterruptWatch::InterruptWatch(std::function<void()> interrupted) {
  caught = false;
  sem_init(&wake, 0, 0);
  thread_ = std::thread([interrupted = std::move(interrupted)] {
    while (sem_wait(&wake) != 0) {
    }
    if (caught) interrupted();
  });
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    Before before = {.signal = signal, .action = {}};
    sigaction(signal, nullptr, &before.action);
    if (before.action.sa_handler == SIG_IGN) continue;
    sigaction(signal, &action, nullptr);
    before_.push_back(before);
  }
}

InterruptWatch::~InterruptWatch() {
  for (const Before& before : before_) sigaction(before.signal, &before.action, nullptr);
  sem_post(&wake);
  thread_.join();
}

bool InterruptWatch::interrupted() const { return caught; }

absl::Status InterruptedError(absl::string_view message) {
  absl::Status status = absl::CancelledError(message);
  status.SetPayload(kInterrupted, absl::Cord());
  return status;
}

bool IsInterrupted(const absl::Status& status) {
  return status.GetPayload(kInterrupted).has_value();
}

}  // namespace espalier
