// Runs an Election in threads of its own.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "server/election/election.h"

namespace espalier {

class Leadership {
 public:
  // `lost`, from any thread, once it led and no longer surely does: it must end the process, which
  // then acts no more. `store` and `clock` must outlive this.
  Leadership(ElectionStore* store, const MonotonicClock* clock, ElectionOptions options,
             std::function<void(const std::string& why)> lost);
  // Resigns.
  ~Leadership();

  const Election& election() const { return election_; }
  // For the store's writes, when etcd shows that another leads.
  void Lose(const std::string& why);
  // Lets another lead at once. After it nothing may be written. Idempotent.
  void Resign();

 private:
  void RunLoop();    // waits for the store's answers
  void WatchLoop();  // never waits for an answer, so that it sees in time that the lease is over
  // Returns false when resigning.
  bool Sleep(absl::Duration duration);

  Election election_;
  const std::function<void(const std::string& why)> lost_;
  absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread run_, watch_;
};

}  // namespace espalier
