// The rendezvous key-value store through which the ranks of a job's attempt find each other
// (compare torch.distributed's TCPStore). Keys live as long as the attempt: when it ends, waiting
// calls return and later calls are refused.
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
    size_t max_keys = 100'000;  // per attempt
    size_t max_value_bytes = 1 << 20;
  };
  Rendezvous() = default;
  explicit Rendezvous(Limits limits) : limits_(limits) {}

  // Begins an attempt, and ends the job's previous one.
  void Begin(const std::string& job_id, uint64_t attempt);
  // Ends the job's attempt. If `attempt` is given, does nothing unless it is the current one.
  void End(const std::string& job_id, std::optional<uint64_t> attempt = std::nullopt);
  void EndAll();

  // Returns FailedPrecondition unless `attempt` is the job's current attempt.
  absl::Status CheckCurrent(const std::string& job_id, uint64_t attempt);
  // Errors as CheckCurrent, and for keys and values beyond the limits.
  absl::Status Set(const std::string& job_id, uint64_t attempt, const std::string& key,
                   const std::string& value);
  // Waits until the key exists, `timeout` passes (nullopt), the attempt ends (FailedPrecondition)
  // or `cancelled` returns true (Cancelled; polled every 100 ms).
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
