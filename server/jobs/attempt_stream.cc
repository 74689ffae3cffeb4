// The examples of an attempt whose dataset is a STREAM: which steps can run, and the wait for more.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/jobs/attempt.h"
#include "server/jobs/job_message.h"

namespace espalier {
namespace {

constexpr absl::Duration kDefaultTimeout = absl::Minutes(10);
// A shorter wait is not worth a line in the job's log, nor are more of them in this time.
constexpr absl::Duration kSayAfter = absl::Seconds(5);
constexpr absl::Duration kSayAgainAfter = absl::Minutes(1);
constexpr absl::Duration kLookAgain = absl::Milliseconds(200);
// Of a run, whose message names them.
constexpr size_t kMostParts = 4096;
// Parts behind those of a run, which workers load while it goes on.
constexpr int64_t kPartsAhead = 2;

absl::Duration TimeoutOf(const v1::ExampleStream& stream) {
  if (!stream.has_timeout_seconds()) return kDefaultTimeout;
  const double seconds = stream.timeout_seconds();
  return seconds > 0 ? absl::Seconds(seconds) : absl::InfiniteDuration();
}

}  // namespace

void Attempt::ExamplesPushed() {
  absl::MutexLock lock(&mutex_);
  changed_.SignalAll();
}

std::optional<AttemptEnd> Attempt::WaitForExamples(int64_t* total) {
  const ExampleStream& stream = *task_.stream;
  const absl::Duration timeout = TimeoutOf(task_.record.job.spec().dataset().stream());
  const absl::Time begin = stream.Now();
  for (bool said = false, waited = false;; waited = true) {
    // Whether it has ended is asked first: then the number of batches is the last one.
    if (stream.ended()) *total = std::min(*total, stream.steps_pushed());
    if (*total == 0) {
      UnloadRanks();
      return AttemptEnd::Failed(absl::InvalidArgumentError(
          "its examples ended before the first batch: there is nothing to train on"));
    }
    if (steps_done_ >= *total || steps_done_ < stream.steps_pushed()) return std::nullopt;
    if (steps_done_ > 0 && TakeCheckpointRequest()) {
      std::optional<AttemptEnd> end = WriteCheckpoint(steps_done_);
      if (end.has_value()) return end;
    }
    if (waited && IsWriting()) {
      // No run with steps follows soon. This one has the ranks report what is durable, and does not
      // wait for the rest.
      v1::RunRequest report;
      report.set_first_step(steps_done_);
      report.set_last_step(steps_done_);
      report.set_goes_on(true);
      if (std::optional<AttemptEnd> end = RunSteps(report); end.has_value()) return end;
    }
    const absl::Duration silent = stream.SilentSince(begin);
    if (silent >= timeout) return NoExamples(timeout);
    if (!said && silent >= kSayAfter && stream.Now() - said_waiting_ >= kSayAgainAfter) {
      said = true;
      said_waiting_ = stream.Now();
      observer_->OnMessage(
          task_.record.job.id(),
          InfoMessage(absl::StrCat("waits for the examples of step ", steps_done_)));
    }
    {
      absl::MutexLock lock(&mutex_);
      if (!stop_ && !rank_failed_ && stream.steps_pushed() <= steps_done_ && !stream.ended()) {
        changed_.WaitWithTimeout(&mutex_, std::min(kLookAgain, timeout - silent));
      }
      if (!stop_ && !rank_failed_) continue;
    }
    StopRanks();
    return EndOfRanks();
  }
}

AttemptEnd Attempt::NoExamples(absl::Duration timeout) {
  // The steps so far need not be repeated.
  if (steps_done_ > 0) {
    if (std::optional<AttemptEnd> end = WriteCheckpoint(steps_done_); end.has_value()) return *end;
  }
  UnloadRanks();
  return AttemptEnd::Failed(absl::InvalidArgumentError(absl::StrCat(
      "no examples of step ", steps_done_, " came for ", absl::FormatDuration(timeout),
      " (dataset.stream.timeout_seconds); resume the job, and go on pushing from that step on")));
}

void Attempt::NameExamples(v1::RunRequest* steps) const {
  const std::vector<ExampleStream::Part> parts = task_.stream->PartsFrom(steps->first_step());
  if (parts.empty()) return;  // an evaluation after the last step
  // The last part is left to the next run, unless it is the only one: it is loaded meanwhile, so
  // that no run begins with waiting for the disk.
  const size_t count = std::min(kMostParts, parts.size() > 1 ? parts.size() - 1 : 1);
  const ExampleStream::Part& last = parts[count - 1];
  steps->set_last_step(std::min(steps->last_step(), last.end));
  int64_t ahead = 0;
  for (const ExampleStream::Part& part : parts) {
    if (part.first >= steps->last_step() && ++ahead > kPartsAhead) break;
    v1::StreamPart* const named = steps->add_stream();
    named->set_first_step(part.first);
    named->set_end_step(part.end);
    named->set_path(tools_.data_folder->NameOf(part.path));
  }
}

}  // namespace espalier
