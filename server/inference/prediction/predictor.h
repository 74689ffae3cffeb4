// A served graph: takes requests from any thread and computes them in batches on its own.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "server/inference/prediction/batch_queue.h"
#include "server/inference/prediction/batch_runner.h"

namespace espalier {

struct PredictorOptions {
  absl::Duration max_delay;                    // as in BatchPolicy
  int max_queue = 256;                         // requests that wait or run
  int64_t max_queue_bytes = int64_t{1} << 30;  // of their inputs and outputs
  const Clock* clock = nullptr;
};

// Since the start.
struct PredictorStatistics {
  int64_t requests = 0;  // answered
  int64_t failures = 0;
  int64_t examples = 0;  // computed, as the passes are
  int64_t passes = 0;
  double pass_seconds = 0;
  // Summed over the answered requests:
  double queue_seconds = 0;    // from arrival to the first pass
  double request_seconds = 0;  // from arrival to the answer
  double failure_seconds = 0;  // of the others
  absl::Time last_answer = absl::InfinitePast();
  struct Passes {
    int64_t count = 0;
    double seconds = 0;
  };
  std::map<int64_t, Passes> passes_of_size;  // by their examples
  int open = 0;                              // requests now
};

// Thread-safe.
class Predictor {
 public:
  Predictor(std::unique_ptr<BatchRunner> runner, const PredictorOptions& options);
  // Ends open requests with Unavailable.
  ~Predictor();

  const GraphSignature& signature() const { return runner_->signature(); }
  int64_t max_batch() const { return runner_->max_batch(); }

  // By output of the signature: the examples' values, row-major.
  using Outputs = std::vector<std::string>;
  using Done = std::function<void(absl::StatusOr<Outputs>)>;
  // Computes `examples` > 0 examples; `inputs` holds their values by input of the signature. Calls
  // `done` once: with ResourceExhausted at once if too many requests wait, InvalidArgument if this
  // one is larger than all that may, DeadlineExceeded if the deadline passes before its last pass
  // begins, Unavailable after End; else from the thread that computes, which it must not block.
  void Predict(int64_t examples, std::vector<std::string> inputs, absl::Time deadline, Done done);

  // Ends open and later requests with this error.
  void End(const absl::Status& why);
  PredictorStatistics statistics() const;

 private:
  struct Request {
    std::vector<std::string> inputs;
    Outputs outputs;
    int64_t left = 0;  // examples that are not computed yet
    int64_t bytes = 0;
    bool running = false;  // a pass reads it
    absl::Status ended;    // while a pass read it
    absl::Time arrival, deadline;
    absl::Time started = absl::InfiniteFuture();
    Done done;
  };
  using Requests = std::map<uint64_t, std::unique_ptr<Request>>;

  void Work();
  absl::Status Admit(int64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Runs one pass and counts it, if it succeeds.
  absl::Status Compute(const std::vector<BatchPart>& parts) ABSL_LOCKS_EXCLUDED(mutex_);
  // Computes the parts and answers the requests that are over.
  void RunPass(const std::vector<BatchQueue::Part>& parts) ABSL_LOCKS_EXCLUDED(mutex_);
  // Removes a request and returns it.
  std::unique_ptr<Request> Close(uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CountAnswer(const Request& request, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CountFailure(const Request& request, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The requests whose deadline has passed, removed.
  std::vector<std::unique_ptr<Request>> TakeLate(absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Time NextDeadline() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::unique_ptr<BatchRunner> runner_;
  const PredictorOptions options_;
  mutable absl::Mutex mutex_;
  absl::CondVar changed_;
  BatchQueue queue_ ABSL_GUARDED_BY(mutex_);
  Requests requests_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status ended_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  PredictorStatistics statistics_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace espalier
