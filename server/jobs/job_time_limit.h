// When a job's time limit ends it, as a pure function.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace espalier {

// A job that has workers.
struct LimitedJob {
  absl::Duration limit;  // zero: none
  absl::Duration ran;    // with workers, since it was submitted or resumed
  bool asked = false;    // for a checkpoint, because of the limit
  absl::Duration since_asked;
  int64_t steps_when_asked = 0;
  int64_t steps_done = 0;
  int64_t total_steps = 0;
  int64_t checkpoint_step = 0;
};

enum class LimitAction {
  kGoOn,
  kAskForCheckpoint,
  kEnd,
};

// Once the limit is reached, asks for a checkpoint of what was trained since the last one, and ends
// the job when it is there, or after `grace` without it. A job that has done all its steps may
// finish.
LimitAction DecideTimeLimit(const LimitedJob& job, absl::Duration grace);

// The error of a job that its limit has ended.
std::string TimeLimitError(const std::string& job_id, const LimitedJob& job);

// Checks TrainingSpec.time_limit_seconds. Returns InvalidArgument naming the field.
absl::Status CheckTimeLimit(const std::string& field, double seconds);

}  // namespace espalier
