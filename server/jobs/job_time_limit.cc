#include "server/jobs/job_time_limit.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

constexpr double kLongestSeconds = 10.0 * 365 * 24 * 3600;

}  // namespace

LimitAction DecideTimeLimit(const LimitedJob& job, absl::Duration grace) {
  if (job.limit <= absl::ZeroDuration() || job.ran < job.limit) return LimitAction::kGoOn;
  if (job.total_steps > 0 && job.steps_done >= job.total_steps) return LimitAction::kGoOn;
  if (job.steps_done <= job.checkpoint_step) return LimitAction::kEnd;  // there is nothing to save
  if (!job.asked) return LimitAction::kAskForCheckpoint;
  const bool saved = job.checkpoint_step >= job.steps_when_asked;
  return saved || job.since_asked >= grace ? LimitAction::kEnd : LimitAction::kGoOn;
}

std::string TimeLimitError(const std::string& job_id, const LimitedJob& job) {
  const bool lost = job.checkpoint_step < (job.asked ? job.steps_when_asked : job.steps_done);
  return absl::StrCat(
      "time limit: the job has had workers for ",
      absl::FormatDuration(absl::Trunc(job.ran, absl::Milliseconds(100))), ", and its limit is ",
      absl::FormatDuration(job.limit),
      lost ? absl::StrCat("; no checkpoint of step ", job.steps_done, " could be written in time")
           : "",
      "; to go on from ",
      job.checkpoint_step > 0 ? absl::StrCat("the checkpoint of step ", job.checkpoint_step)
                              : "the beginning",
      " for as long again: espalier jobs resume ", job_id);
}

absl::Status CheckTimeLimit(const std::string& field, double seconds) {
  if (seconds >= 0 && seconds <= kLongestSeconds) return absl::OkStatus();  // NaN is not
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", seconds, "; 0 (no limit) to ",
                                                 kLongestSeconds, " seconds are accepted"));
}

}  // namespace espalier
