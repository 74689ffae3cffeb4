// The key-value store by which the ranks of one attempt of a job find each other. Keys live as long
// as the attempt: when it ends, whoever waits is answered and later calls are refused.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace espalier {

// Thread-safe.
class Rendezvous {
 public:
  struct Limits {
    size_t max_keys = 100'000;  // of one attempt
    size_t max_value_bytes = 1 << 20;
  };
  Rendezvous() = default;
  explicit Rendezvous(Limits limits) : limits_(limits) {}

  // Ends the job's attempt before, if there was one.
  void Begin(const std::string& job_id, uint64_t attempt);
  // Of one attempt only, if it is given: nothing happens if a later one has begun.
  void End(const std::string& job_id, std::optional<uint64_t> attempt = std::nullopt);
  void EndAll();

  // FailedPrecondition if that is not the job's present attempt.
  absl::Status Set(const std::string& job_id, uint64_t attempt, const std::string& key,
                   const std::string& value);
  // Waits until the key is there, `timeout` has passed (nullopt), the attempt has ended
  // (FailedPrecondition) or `cancelled` returns true (Cancelled; asked every 100 ms).
  absl::StatusOr<std::optional<std::string>> Get(const std::string& job_id, uint64_t attempt,
                                                 const std::string& key, absl::Duration timeout,
                                                 const std::function<bool()>& cancelled = nullptr);

 private:
  struct KeySpace {
    uint64_t attempt = 0;
    bool over = false;
    std::map<std::string, std::string> values;
  };
  absl::StatusOr<std::shared_ptr<KeySpace>> Find(const std::string& job_id, uint64_t attempt)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Limits limits_;
  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::map<std::string, std::shared_ptr<KeySpace>> key_spaces_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
