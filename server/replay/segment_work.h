// What a segment of a replay does, on a thread of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "base/clock.h"
#include "espalier/v1/replay.pb.h"
#include "server/jobs/attempt.h"
#include "server/replay/answer_store.h"
#include "server/store/job_store.h"

namespace espalier {

class ReplayPlanner;

// What replays use. All must outlive them.
struct ReplayTools {
  const AttemptTools* attempts = nullptr;
  const ReplayPlanner* planner = nullptr;
  AnswerStore* answers = nullptr;
  const JobStore* jobs = nullptr;
  const Clock* clock = nullptr;
};

struct SegmentProgress {
  int64_t steps_done = 0;  // of this try, from its checkpoint on, or checkpoints
  int64_t stored_rows = 0;
  v1::ReplayComparison comparison;  // of steps that no earlier try has compared
  bool durable = false;             // it is to be written down now: answers of these steps follow
};

class SegmentWork {
 public:
  // Called from one thread at a time, some times a second at most.
  using OnProgress = std::function<void(const SegmentProgress&)>;

  virtual ~SegmentWork() = default;
  // Blocks. OK once all answers are durable. Aborted if a worker was no longer idle; Unavailable if
  // one was lost, Cancelled after Cancel. Answers of checked steps are durable also after an error.
  virtual absl::Status Run() = 0;
  // Ends Run. Thread-safe; does not block.
  virtual void Cancel() = 0;
  // After Run: the loss that differs from the record, which has ended it.
  virtual std::optional<v1::ReplayDifference> difference() const { return std::nullopt; }
};

}  // namespace espalier
