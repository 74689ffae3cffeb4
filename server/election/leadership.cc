#include "server/election/leadership.h"

#include <utility>

#include "absl/time/clock.h"

namespace espalier {
namespace {

constexpr absl::Duration kWatch = absl::Milliseconds(50);

}  // namespace

Leadership::Leadership(ElectionStore* store, const MonotonicClock* clock, ElectionOptions options,
                       std::function<void(const std::string& why)> lost)
    : election_(store, clock, std::move(options)),
      lost_(std::move(lost)),
      run_([this] { RunLoop(); }),
      watch_([this] { WatchLoop(); }) {}

Leadership::~Leadership() { Resign(); }

bool Leadership::Sleep(absl::Duration duration) {
  absl::MutexLock lock(&mutex_);
  return !mutex_.AwaitWithTimeout(absl::Condition(&stop_), duration);
}

void Leadership::RunLoop() {
  do {
    election_.Step();
  } while (Sleep(election_.Pause()));
}

void Leadership::WatchLoop() {
  while (Sleep(kWatch)) {
    if (election_.won().has_value() && election_.Left() <= absl::ZeroDuration()) {
      Lose("its lease was not renewed in time");
    }
  }
}

void Leadership::Lose(const std::string& why) {
  {
    absl::MutexLock lock(&mutex_);
    if (stop_) return;  // it has resigned
  }
  lost_(why);
}

void Leadership::Resign() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  if (run_.joinable()) run_.join();
  if (watch_.joinable()) watch_.join();
  election_.Resign();
}

}  // namespace espalier
