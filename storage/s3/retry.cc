#include "storage/s3/retry.h"

#include <algorithm>
#include <random>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/backoff.h"

namespace espalier::s3 {
namespace {

// For a cancellation, while it pauses.
constexpr absl::Duration kLookAgain = absl::Milliseconds(50);

class SystemPauses : public Pauses {
 public:
  absl::Time Now() override { return absl::Now(); }
  void Sleep(absl::Duration duration) override { absl::SleepFor(duration); }
  double Chance() override {
    absl::MutexLock lock(&mutex_);
    return std::uniform_real_distribution<double>(0, 1)(engine_);
  }

 private:
  absl::Mutex mutex_;
  std::mt19937_64 engine_ ABSL_GUARDED_BY(mutex_){std::random_device{}()};
};

}  // namespace

std::unique_ptr<Pauses> NewSystemPauses() { return std::make_unique<SystemPauses>(); }

absl::Status Retry(const RetryPolicy& policy, Pauses& pauses,
                   const std::function<absl::Status()>& attempt,
                   const std::atomic<bool>* cancelled) {
  const absl::Time begin = pauses.Now();
  Backoff backoff(policy.first, policy.longest);
  const auto is_cancelled = [&] { return cancelled != nullptr && *cancelled; };
  if (is_cancelled()) return absl::CancelledError("nobody waits for it any more");
  for (int done = 1;; ++done) {
    absl::Status status = attempt();
    if (!absl::IsUnavailable(status)) return status;
    const absl::Duration pause = backoff.Take() * pauses.Chance();
    const absl::Duration spent = pauses.Now() - begin;
    if (done >= policy.attempts || spent + pause > policy.total) {
      absl::Status last(
          status.code(),
          absl::StrCat(status.message(), " (", done, " attempts in ",
                       absl::FormatDuration(absl::Trunc(spent, absl::Seconds(1))), ")"));
      status.ForEachPayload([&last](absl::string_view name, const absl::Cord& payload) {
        last.SetPayload(name, payload);
      });
      return last;
    }
    if (cancelled == nullptr) pauses.Sleep(pause);
    for (absl::Duration left = pause; cancelled != nullptr && left > absl::ZeroDuration();
         left -= kLookAgain) {
      if (*cancelled) return status;
      pauses.Sleep(std::min(left, kLookAgain));
    }
    if (is_cancelled()) return status;
  }
}

}  // namespace espalier::s3
