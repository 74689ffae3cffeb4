// Compares the losses of replayed steps with those that were recorded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "espalier/v1/recording.pb.h"
#include "espalier/v1/replay.pb.h"
#include "server/recordings/recorded_losses.h"

namespace espalier {

// Why steps of a replay need not have the recorded bits: what they were computed with differs in
// plan, program version, instruction set, threads or device. Empty: they must have them.
std::string WhyOtherBits(const v1::RecordedAttempt& recorded, const v1::RecordedAttempt& replayed);

// Relative differences of losses up to this one may come from another order of additions.
double LossTolerance(bool half_precision);

// What two tries of a segment have compared, of different steps: to the bit only if both did.
v1::ReplayComparison BothOf(const v1::ReplayComparison& earlier, const v1::ReplayComparison& later);

// Not thread-safe.
class LossCheck {
 public:
  // A segment begins at `first_step` and is computed with `replayed` (its first_step does not
  // count). `losses` and `attempts` (AttemptsOfSteps) are the recording's, in ascending order.
  // Losses of steps before `counted_from`, which an earlier try has compared, are compared again,
  // but do not count.
  LossCheck(std::vector<RecordedLoss> losses, std::vector<v1::RecordedAttempt> attempts,
            int64_t first_step, v1::RecordedAttempt replayed, double tolerance,
            int64_t counted_from = 0);

  // Returns how the step's loss differs from the recorded one; nothing if it does not, or none was
  // recorded. NaN is equal to NaN.
  std::optional<v1::ReplayDifference> Check(int64_t step, double loss);

  const v1::ReplayComparison& comparison() const { return comparison_; }

 private:
  // Takes the attempt of this step, and those before it, into account.
  void AdvanceTo(int64_t step);

  const std::vector<RecordedLoss> losses_;
  const std::vector<v1::RecordedAttempt> attempts_;
  const int64_t first_step_;
  const v1::RecordedAttempt replayed_;
  const int64_t counted_from_;
  size_t next_attempt_ = 0;
  v1::ReplayComparison comparison_;
};

}  // namespace espalier
