#include "server/election/election.h"

#include <time.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

class BootClock : public MonotonicClock {
 public:
  absl::Duration Now() const override {
    timespec now = {};
    clock_gettime(CLOCK_BOOTTIME, &now);
    return absl::DurationFromTimespec(now);
  }
};

// The part of the lease's time for which a leader is sure. The rest is for clocks that run at
// different rates, and for the time until this process notices.
constexpr double kSure = 0.9;
constexpr double kRenewEvery = 1.0 / 4;                    // of the lease's time
constexpr absl::Duration kLook = absl::Milliseconds(200);  // how often a standby looks

}  // namespace

std::unique_ptr<MonotonicClock> NewBootClock() { return std::make_unique<BootClock>(); }

absl::Duration Election::LeftAt(absl::Duration now) const {
  return std::max(absl::ZeroDuration(), renewed_ + ttl_ * kSure - now);
}

std::optional<ElectionStore::Leader> Election::won() const {
  absl::MutexLock lock(&mutex_);
  return won_;
}

absl::Duration Election::Left() const {
  absl::MutexLock lock(&mutex_);
  return won_.has_value() ? LeftAt(clock_.Now()) : absl::ZeroDuration();
}

absl::Duration Election::Pause() const {
  absl::MutexLock lock(&mutex_);
  if (!won_.has_value()) return kLook;
  return error_.ok() ? std::max(kLook, ttl_ * kRenewEvery) : kLook;
}

std::string Election::Describe() const {
  absl::MutexLock lock(&mutex_);
  if (won_.has_value()) return absl::StrCat("leader ", options_.candidate);
  std::string text = "standby";
  if (leader_.has_value()) {
    absl::StrAppend(&text, "; the leader is ", leader_->candidate);
  } else {
    absl::StrAppend(&text, "; there is no leader yet");
  }
  if (!error_.ok()) {
    absl::StrAppend(&text, "; job store: ", std::string(error_.message()));
  }
  return text;
}

void Election::Step() {
  absl::Status status = TryStep();
  absl::MutexLock lock(&mutex_);
  error_ = std::move(status);
}

absl::Status Election::Renew(int64_t lease) {
  const absl::Duration sent = clock_.Now();
  const absl::StatusOr<absl::Duration> ttl = store_.Renew(lease);
  if (!ttl.ok()) return ttl.status();
  absl::MutexLock lock(&mutex_);
  if (*ttl > absl::ZeroDuration()) {
    renewed_ = sent;
    ttl_ = *ttl;
    return absl::OkStatus();
  }
  // It has ended. A candidate begins anew; a leader's time runs out, or has.
  if (won_.has_value()) {
    ttl_ = absl::ZeroDuration();
    return absl::FailedPreconditionError("its lease has ended");
  }
  lease_ = 0;
  entered_ = false;
  return absl::OkStatus();
}

absl::Status Election::TryStep() {
  int64_t lease;
  bool entered, due, leads;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Duration now = clock_.Now();
    leads = won_.has_value();
    lease = lease_;
    entered = entered_;
    due = leads || now - renewed_ >= ttl_ * kRenewEvery;
    // The lease of a leader that has lost it must not come back.
    if (leads && LeftAt(now) <= absl::ZeroDuration()) {
      return absl::FailedPreconditionError("its lease was not renewed in time");
    }
  }
  if (lease != 0 && due) {
    if (absl::Status status = Renew(lease); !status.ok()) return status;
    absl::MutexLock lock(&mutex_);
    lease = lease_;
    entered = entered_;
  }
  if (leads) return absl::OkStatus();
  if (lease == 0) {
    const absl::Duration sent = clock_.Now();
    const absl::StatusOr<ElectionStore::Lease> granted = store_.Grant(options_.ttl);
    if (!granted.ok()) return granted.status();
    absl::MutexLock lock(&mutex_);
    lease = lease_ = granted->id;
    ttl_ = granted->ttl;
    renewed_ = sent;
  }
  if (!entered) {
    absl::Status status = store_.Enter(lease, options_.candidate);
    absl::MutexLock lock(&mutex_);
    if (absl::IsNotFound(status)) lease_ = 0;
    if (!status.ok()) return status;
    entered_ = true;
  }
  const absl::StatusOr<std::optional<ElectionStore::Leader>> oldest = store_.Oldest();
  absl::MutexLock lock(&mutex_);
  if (!oldest.ok()) return oldest.status();
  leader_ = *oldest;
  // A candidacy that is gone, as its lease, is made anew.
  if (!leader_.has_value()) {
    lease_ = 0;
    entered_ = false;
  } else if (leader_->lease == lease && LeftAt(clock_.Now()) > absl::ZeroDuration()) {
    won_ = leader_;
  }
  return absl::OkStatus();
}

void Election::Resign() {
  int64_t lease;
  {
    absl::MutexLock lock(&mutex_);
    lease = lease_;
    ttl_ = absl::ZeroDuration();
    lease_ = 0;
    entered_ = false;
  }
  // If it cannot be told, the lease ends by itself.
  if (lease != 0) store_.Revoke(lease).IgnoreError();
}

}  // namespace espalier
