#include "serving/speculative/payoff.h"

#include <algorithm>
#include <cmath>

namespace espalier {
namespace {

constexpr size_t kKept = 48;  // steps with drafts
constexpr size_t kKeptWithout = 16;
constexpr size_t kEnoughWith = 16;  // to judge by
constexpr size_t kLeastWith = 6;    // where it is plain to see
constexpr size_t kEnoughWithout = 4;
constexpr size_t kTrial = 12;            // likewise, where no gain is expected
constexpr double kTrialShare = 0.005;    // of the time may be lost in those
constexpr int kCompared = 4;             // steps without, now and then
constexpr int kDoubted = 8;              // where that decides
constexpr int64_t kCompareSeldom = 768;  // where the last comparison was clear
constexpr double kClear = 1.25;          // times the rate without
constexpr int64_t kShortestHold = 192;   // steps
constexpr int64_t kLongestHold = 4096;   // the first time; it doubles with every further loss
constexpr int kMostDoublings = 8;
constexpr double kLossShare = 128;  // a trial may lose this part of the time until the next one
constexpr double kLongest = 3;      // times the median
constexpr double kSpread = 48;      // steps
constexpr double kPrior = 16;       // steps
constexpr double kMemory = 512;     // steps
constexpr double kSure = 1.5;       // standard errors
constexpr double kPlain = 4;        // likewise
constexpr double kLuck = 2;         // standard errors: it is looked at again and again
constexpr double kRelease = 1.25;   // times the gain that would have been enough
constexpr int kExact = 8;           // loads up to here have buckets of their own
constexpr int kPerOctave = 4;

}  // namespace

double Payoff::Arm::Longest() const {
  std::vector<double> seconds;
  for (const Sample& step : steps) seconds.push_back(step.seconds);
  const auto middle = seconds.begin() + static_cast<int64_t>(seconds.size()) / 2;
  std::nth_element(seconds.begin(), middle, seconds.end());
  return kLongest * *middle;
}

// A ratio estimator: the sum of the tokens over the sum of what was expected in the time, its error
// from what every step is away from that ratio (Cochran 1977, chapter 6).
Payoff::Arm::Yield Payoff::Arm::Measure() const {
  const double longest = Longest();
  const auto expected = [&](const Sample& step) {
    return std::min(step.seconds, longest) * step.expected;
  };
  double tokens = 0, sum = 0;
  for (const Sample& step : steps) {
    tokens += step.tokens;
    sum += expected(step);
  }
  if (sum <= 0) return {};
  const double share = tokens / sum;
  double squares = 0;
  for (const Sample& step : steps) {
    const double off = step.tokens - share * expected(step);
    squares += off * off;
  }
  return {share, std::sqrt(squares) / sum};
}

Payoff::Bucket& Payoff::Of(int load) {
  const int bucket =
      load <= kExact ? load
                     : kExact + static_cast<int>(std::lround(
                                    kPerOctave * std::log2(static_cast<double>(load) / kExact)));
  return buckets_[bucket];
}

void Payoff::Observe(int load, bool with, const Step& step) {
  Bucket& bucket = Of(load);
  Arm& arm = with ? bucket.with : bucket.without;
  Sample sample{static_cast<double>(step.tokens), step.seconds, step.expected, 0};
  if (step.likely > 0) {
    // At first as if kPrior such steps had borne the estimate out.
    if (bucket.likely == 0) bucket.tokens = bucket.likely = kPrior * step.likely;
    bucket.tokens += step.tokens - bucket.tokens / kMemory;
    bucket.likely += step.likely - bucket.likely / kMemory;
    const double kept = bucket.tokens / bucket.likely;
    sample.tokens = step.likely * kept;
    bucket.off += std::pow(step.tokens - sample.tokens, 2) - bucket.off / kMemory;
  }
  if (with) {
    bucket.debt += step.catching_up;
    const double share = bucket.debt / kSpread;
    sample.spread = step.catching_up - share;
    sample.seconds -= sample.spread;
    bucket.debt -= share;
  }
  const size_t kept = with ? kKept : kKeptWithout;
  if (arm.steps.size() < kept) {
    arm.steps.push_back(sample);
  } else {
    arm.steps[arm.next % kept] = sample;
  }
  ++arm.next;
  credit_ += kTrialShare * step.seconds;
  if (!with) {
    bucket.steps = 0;
    bucket.left = std::max<int64_t>(0, bucket.left - 1);
    bucket.plain_left = std::max(0, bucket.plain_left - 1);
  } else {
    ++bucket.steps;
  }
  if (bucket.left == 0 && bucket.plain_left == 0) Judge(load, bucket);
}

void Payoff::Judge(int load, Bucket& bucket) {
  const size_t count = bucket.with.steps.size();
  if (count < kLeastWith || bucket.without.steps.size() < kEnoughWithout) {
    return;
  }
  Arm::Yield on = bucket.with.Measure();
  const Arm::Yield off = bucket.without.Measure();
  if (bucket.likely > 0) on.error += kLuck * on.share * std::sqrt(bucket.off) / bucket.tokens;
  on.share *= bucket.gain;
  on.error *= bucket.gain;
  const double error = std::hypot(on.error, off.error);
  const bool enough = count >= (bucket.trial ? kTrial : kEnoughWith);
  if (!enough && on.share + kPlain * error >= off.share) return;
  if (bucket.trial ? on.share - error > off.share : on.share + kSure * error >= off.share) {
    bucket.doubted = bucket.trial = false;
    if (count == kKept) bucket.losses = 0;
    bucket.wins = on.share - error > off.share;
    bucket.clear = on.share > kClear * off.share;
    return;
  }
  // Perhaps only the machine is slower than when the others ran.
  if (!bucket.trial && !bucket.doubted) {
    bucket.doubted = true;
    bucket.without = {};
    bucket.plain_left = kDoubted;
    return;
  }
  bucket.doubted = bucket.trial = false;
  // In steps without: what those would have yielded in the time of the trial.
  const double longest = bucket.with.Longest();
  double lost = 0;
  for (const Sample& trial : bucket.with.steps) {
    const double took = std::min(trial.seconds, longest) + trial.spread;
    lost += (took * trial.expected / bucket.gain * off.share - trial.tokens) / load;
  }
  const int64_t longest_hold = kLongestHold << std::min(bucket.losses++, kMostDoublings);
  bucket.left = std::clamp(static_cast<int64_t>(kLossShare * lost), kShortestHold, longest_hold);
  bucket.lost_at = bucket.gain * off.share / on.share;
  bucket.compare_after = kCompareEvery;
  // The next trial is judged by itself.
  bucket.with = {};
  bucket.debt = 0;
}

bool Payoff::Withholds(int load, double gain, double cost) {
  if (gain < kLeastGain) return true;
  Bucket& bucket = Of(load);
  bucket.gain = gain;
  if (bucket.left > 0 && gain > kRelease * bucket.lost_at) bucket.left = 0;
  if (bucket.left > 0 || bucket.plain_left > 0) return true;
  if (bucket.without.steps.size() < kEnoughWithout) return true;
  if (gain >= 1) {
    bucket.trial = false;
  } else if (bucket.with.steps.empty() && !bucket.trial) {
    if (credit_ < cost) return true;
    credit_ -= cost;
    bucket.trial = true;
  }
  if (bucket.steps < bucket.compare_after) return false;
  bucket.plain_left = kCompared;
  bucket.compare_after = bucket.clear  ? kCompareSeldom
                         : bucket.wins ? std::min(2 * bucket.compare_after, kCompareSeldom)
                                       : kCompareEvery;
  return true;
}

}  // namespace espalier
