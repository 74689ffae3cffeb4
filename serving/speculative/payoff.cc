#include "serving/speculative/payoff.h"

#include <algorithm>
#include <cmath>

namespace espalier {
namespace {

constexpr size_t kKept = 48;       // steps of an arm
constexpr size_t kEnoughWith = 6;  // to judge by
constexpr size_t kEnoughWithout = 3;
constexpr int64_t kCompareSeldom = 1024;  // where the last comparison was clear
constexpr double kClear = 1.25;           // times the rate without
constexpr int64_t kFirstHold = 192;       // steps
constexpr int64_t kLongestHold = 8192;
constexpr double kLossShare = 128;  // a trial may lose this part of the time until the next one
constexpr double kLongest = 3;      // times the median
constexpr int kExact = 8;           // loads up to here have buckets of their own
constexpr int kPerOctave = 4;

}  // namespace

// A ratio estimator: the sum of the tokens over the sum of the seconds, its error from what every
// step is away from that ratio (Cochran 1977, chapter 6).
Payoff::Arm::Rate Payoff::Arm::Measure() const {
  std::vector<double> seconds;
  for (const Step& step : steps) seconds.push_back(step.seconds);
  const auto middle = seconds.begin() + static_cast<int64_t>(seconds.size()) / 2;
  std::nth_element(seconds.begin(), middle, seconds.end());
  const double longest = kLongest * *middle;
  double tokens = 0, sum = 0;
  for (const Step& step : steps) {
    tokens += step.tokens;
    sum += std::min(step.seconds, longest);
  }
  if (sum <= 0) return {};
  const double rate = tokens / sum;
  double squares = 0;
  for (const Step& step : steps) {
    const double off = step.tokens - rate * std::min(step.seconds, longest);
    squares += off * off;
  }
  return {rate, std::sqrt(squares) / sum};
}

Payoff::Bucket& Payoff::Of(int load) {
  const int bucket =
      load <= kExact ? load
                     : kExact + static_cast<int>(std::lround(
                                    kPerOctave * std::log2(static_cast<double>(load) / kExact)));
  return buckets_[bucket];
}

void Payoff::Observe(int load, bool with, int tokens, double seconds) {
  Bucket& bucket = Of(load);
  Arm& arm = with ? bucket.with : bucket.without;
  const Step step{static_cast<double>(tokens), seconds};
  if (arm.steps.size() < kKept) {
    arm.steps.push_back(step);
  } else {
    arm.steps[arm.next % kKept] = step;
  }
  ++arm.next;
  if (!with) {
    bucket.steps = 0;
    bucket.left = std::max<int64_t>(0, bucket.left - 1);
    return;
  }
  ++bucket.steps;
  if (bucket.with.steps.size() < kEnoughWith || bucket.without.steps.size() < kEnoughWithout) {
    return;
  }
  const Arm::Rate on = bucket.with.Measure(), off = bucket.without.Measure();
  if (on.tokens_per_second + std::hypot(on.error, off.error) >= off.tokens_per_second) {
    if (bucket.with.steps.size() == kKept) bucket.next_hold = 0;
    const bool clear = on.tokens_per_second > kClear * off.tokens_per_second;
    bucket.compare_after = clear ? kCompareSeldom : kCompareEvery;
    return;
  }
  // In steps without, at whose rate the trial's tokens would have taken less time.
  double lost = 0;
  for (const Step& trial : bucket.with.steps) {
    lost += (trial.seconds * off.tokens_per_second - trial.tokens) / load;
  }
  bucket.left = std::max({bucket.next_hold, kFirstHold, static_cast<int64_t>(kLossShare * lost)});
  bucket.next_hold = std::min(2 * bucket.left, kLongestHold);
  // The next trial is judged by itself.
  bucket.with = {};
}

bool Payoff::Withholds(int load) {
  Bucket& bucket = Of(load);
  if (bucket.left > 0) return true;
  if (bucket.without.steps.size() < kEnoughWithout) return true;
  if (bucket.steps < bucket.compare_after) return false;
  // Again a few, the oldest ones being forgotten.
  bucket.without = {};
  return true;
}

}  // namespace espalier
