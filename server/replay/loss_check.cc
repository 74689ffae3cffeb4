#include "server/replay/loss_check.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/recordings/diff_runs.h"

namespace espalier {
namespace {

std::string Differ(const char* what, const std::string& recorded, const std::string& now) {
  return absl::StrCat("the recording is of ", what, " ", recorded.empty() ? "unknown" : recorded,
                      ", the replay of ", now.empty() ? "unknown" : now);
}

}  // namespace

std::string WhyOtherBits(const v1::RecordedAttempt& recorded, const v1::RecordedAttempt& replayed) {
  if (recorded.program_version() != replayed.program_version()) {
    return Differ("version", recorded.program_version(), replayed.program_version());
  }
  if (recorded.ranks_size() != replayed.ranks_size()) {
    return absl::StrCat("the recording is of ", recorded.ranks_size(), " ranks, the replay of ",
                        replayed.ranks_size());
  }
  if (DescribePlan(recorded.plan()) != DescribePlan(replayed.plan())) {
    return "the replay has another plan";
  }
  for (int r = 0; r < recorded.ranks_size(); ++r) {
    const v1::RecordedAttempt::Rank& then = recorded.ranks(r);
    const v1::RecordedAttempt::Rank& now = replayed.ranks(r);
    const std::string rank = absl::StrCat("rank ", r, ": ");
    if (then.program_version() != now.program_version()) {
      return absl::StrCat(rank, Differ("version", then.program_version(), now.program_version()));
    }
    if (then.device_model() != now.device_model()) {
      return absl::StrCat(rank, Differ("device", then.device_model(), now.device_model()));
    }
    if (then.instruction_set() != now.instruction_set()) {
      return absl::StrCat(rank,
                          Differ("instruction set", then.instruction_set(), now.instruction_set()));
    }
    if (then.threads() != now.threads()) {
      return absl::StrCat(
          rank, Differ("threads", absl::StrCat(then.threads()), absl::StrCat(now.threads())));
    }
  }
  return "";
}

double LossTolerance(bool half_precision) { return half_precision ? 1e-2 : 1e-3; }

v1::ReplayComparison BothOf(const v1::ReplayComparison& earlier,
                            const v1::ReplayComparison& later) {
  if (earlier.compared() == 0) return later;
  if (later.compared() == 0) return earlier;
  v1::ReplayComparison both = earlier.bits() ? later : earlier;  // with its reason
  both.set_tolerance(std::max(earlier.tolerance(), later.tolerance()));
  both.set_compared(earlier.compared() + later.compared());
  // NaN is larger than any number.
  const bool larger = !(earlier.largest() <= later.largest());
  both.set_largest(larger ? earlier.largest() : later.largest());
  return both;
}

LossCheck::LossCheck(std::vector<RecordedLoss> losses, std::vector<v1::RecordedAttempt> attempts,
                     int64_t first_step, v1::RecordedAttempt replayed, double tolerance,
                     int64_t counted_from)
    : losses_(std::move(losses)),
      attempts_(std::move(attempts)),
      first_step_(first_step),
      replayed_(std::move(replayed)),
      counted_from_(counted_from) {
  comparison_.set_bits(true);
  comparison_.set_tolerance(tolerance);
  AdvanceTo(first_step);
}

void LossCheck::AdvanceTo(int64_t step) {
  for (; next_attempt_ < attempts_.size() && attempts_[next_attempt_].first_step() <= step;
       ++next_attempt_) {
    const bool over = next_attempt_ + 1 < attempts_.size() &&
                      attempts_[next_attempt_ + 1].first_step() <= first_step_;
    // Once a step has other bits, so have those after it.
    if (over || !comparison_.bits()) continue;
    comparison_.set_reason(WhyOtherBits(attempts_[next_attempt_], replayed_));
    comparison_.set_bits(comparison_.reason().empty());
  }
}

std::optional<v1::ReplayDifference> LossCheck::Check(int64_t step, double loss) {
  AdvanceTo(step);
  const auto found =
      std::lower_bound(losses_.begin(), losses_.end(), step,
                       [](const RecordedLoss& recorded, int64_t s) { return recorded.step < s; });
  if (found == losses_.end() || found->step != step) return std::nullopt;
  if (step >= counted_from_) comparison_.set_compared(comparison_.compared() + 1);
  if (SameBits(found->loss, loss) || (std::isnan(found->loss) && std::isnan(loss))) {
    return std::nullopt;
  }
  const double larger = std::max(std::abs(found->loss), std::abs(loss));
  const double difference = std::abs(found->loss - loss) / larger;
  // NaN, where one of them is no number, is larger than any tolerance.
  if (!(difference <= comparison_.largest())) comparison_.set_largest(difference);
  if (!comparison_.bits() && difference <= comparison_.tolerance()) return std::nullopt;
  v1::ReplayDifference differs;
  differs.set_step(step);
  differs.set_recorded(found->loss);
  differs.set_replayed(loss);
  if (comparison_.bits()) {
    differs.set_cause(
        "plan, program and machine are those of the recording, so the data, a checkpoint or what "
        "the machine computes has changed");
  } else {
    differs.set_cause(absl::StrFormat("more than a relative %g, although %s",
                                      comparison_.tolerance(), comparison_.reason()));
  }
  return differs;
}

}  // namespace espalier
