// Which of several coordinators leads: a lease in the store that all share, and a candidacy that
// lives as long as the lease. The oldest candidacy leads, as in etcd's recipe for elections.
//
// A leader is sure that it leads only for as long as its lease cannot have ended: a part of the
// lease's time, counted from before the last renewal was sent, by a clock that also counts while
// the process or the machine is stopped.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace espalier {

// Time since some moment, which nobody sets. Thread-safe.
class MonotonicClock {
 public:
  virtual ~MonotonicClock() = default;
  virtual absl::Duration Now() const = 0;
};

// Counts while the machine is suspended, too.
std::unique_ptr<MonotonicClock> NewBootClock();

// What the store must offer. One call is one attempt. Thread-safe.
class ElectionStore {
 public:
  virtual ~ElectionStore() = default;

  struct Lease {
    int64_t id = 0;
    absl::Duration ttl;
  };
  virtual absl::StatusOr<Lease> Grant(absl::Duration ttl) = 0;
  // Returns the lease's time from now on; zero: it has ended.
  virtual absl::StatusOr<absl::Duration> Renew(int64_t lease) = 0;
  virtual absl::Status Revoke(int64_t lease) = 0;

  // Makes the lease's candidacy, if it is not there, with what others are to know of the candidate.
  // Returns NotFound if the lease has ended.
  virtual absl::Status Enter(int64_t lease, const std::string& candidate) = 0;
  struct Leader {
    int64_t lease = 0;
    int64_t epoch = 0;  // grows from leader to leader
    std::string key;
    std::string candidate;
  };
  // Returns the oldest candidacy; nullopt: there is none.
  virtual absl::StatusOr<std::optional<Leader>> Oldest() = 0;
};

struct ElectionOptions {
  absl::Duration ttl = absl::Seconds(10);
  std::string candidate;  // the address that others are told
};

// One candidate. Step is called by one thread; the rest is thread-safe.
class Election {
 public:
  Election(ElectionStore* store, const MonotonicClock* clock, ElectionOptions options)
      : store_(*store), clock_(*clock), options_(std::move(options)) {}

  // Does what is due: gets a lease, renews it, looks who leads. Errors of the store are kept for
  // Describe; the next call tries again.
  void Step();
  // When to call it again.
  absl::Duration Pause() const;

  // Set once this candidate leads, for good: a leader that loses its lease does not run again.
  std::optional<ElectionStore::Leader> won() const;
  // How long it surely leads without another renewal; zero: it does not, or may not any more.
  absl::Duration Left() const;
  // "standby; the leader is 10.0.0.1:7070", or why there is none.
  std::string Describe() const;

  // Ends the lease, so that another leads at once.
  void Resign();

 private:
  absl::Status TryStep();
  absl::Status Renew(int64_t lease);
  absl::Duration LeftAt(absl::Duration now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  ElectionStore& store_;
  const MonotonicClock& clock_;
  const ElectionOptions options_;

  mutable absl::Mutex mutex_;
  int64_t lease_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: none
  bool entered_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Duration ttl_ ABSL_GUARDED_BY(mutex_);
  absl::Duration renewed_ ABSL_GUARDED_BY(mutex_);  // when the last renewal was sent
  absl::Status error_ ABSL_GUARDED_BY(mutex_);      // of the last step
  std::optional<ElectionStore::Leader> leader_ ABSL_GUARDED_BY(mutex_), won_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
