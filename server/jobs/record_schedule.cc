#include "server/jobs/record_schedule.h"

#include <algorithm>
#include <cmath>

#include "server/recordings/retention.h"

namespace espalier {
namespace {

constexpr double kDefaultOverhead = 1.0 / 15;
constexpr double kPartWithinEpochs = 0.1;
// Least distance of two: otherwise a replay mostly loads.
constexpr double kLeastByRestore = 2;

}  // namespace

RecordSchedule::RecordSchedule(const RecordScheduleOptions& options)
    : options_(options), steps_done_(options.first_step), last_(options.first_step) {}

void RecordSchedule::StepDone(int64_t steps_done, double seconds) {
  steps_done_ = steps_done;
  trained_seconds_ += seconds;
}

double RecordSchedule::ExpectedSeconds() const {
  // Until one is measured: the ranks have just moved as many bytes the other way.
  if (checkpoints_ == 0) return options_.restore_seconds;
  return spent_seconds_ / static_cast<double>(checkpoints_);
}

int64_t RecordSchedule::Due(double notice) const {
  if (asked_at_ >= 0 || trained_seconds_ <= 0) return 0;
  const double since = trained_seconds_ - last_trained_seconds_;
  if (since < kLeastByRestore * options_.restore_seconds) return 0;
  const double overhead = options_.overhead > 0 ? options_.overhead : kDefaultOverhead;
  const double budget = trained_seconds_ * overhead;
  const double spent = spent_seconds_ + ExpectedSeconds();
  if (spent > budget) return 0;
  const auto steps = static_cast<double>(steps_done_ - options_.first_step);
  const int64_t ahead =
      std::max<int64_t>(1, static_cast<int64_t>(std::ceil(notice * steps / trained_seconds_)));
  int64_t at = steps_done_ + ahead;
  if (spent > budget * kPartWithinEpochs) {
    if (options_.epoch_steps <= 0) return 0;
    at = (at + options_.epoch_steps - 1) / options_.epoch_steps * options_.epoch_steps;
    if (at - steps_done_ > 2 * ahead) return 0;  // a later step will ask
  }
  const int64_t least = options_.total_steps / kMostUseful;
  return at - last_ >= least && at < options_.total_steps ? at : 0;
}

void RecordSchedule::Asked(int64_t steps_done) {
  if (steps_done > last_) asked_at_ = steps_done;
}

void RecordSchedule::NotAsked() {
  asked_at_ = -1;
  last_ = steps_done_;
  last_trained_seconds_ = trained_seconds_;
}

void RecordSchedule::Written(int64_t steps_done, double seconds) {
  spent_seconds_ += seconds;
  ++checkpoints_;
  last_ = std::max(last_, steps_done);
  last_trained_seconds_ = trained_seconds_;
  if (steps_done >= asked_at_) asked_at_ = -1;
}

}  // namespace espalier
