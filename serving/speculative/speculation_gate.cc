#include "serving/speculative/speculation_gate.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace espalier {
namespace {

constexpr size_t kBlock = 8;             // steps with drafts, on each side of a comparison
constexpr size_t kPlain = 4;             // steps without
constexpr size_t kEnough = 4;            // comparisons to judge by
constexpr size_t kTrial = 2;             // likewise, where no gain is expected
constexpr size_t kTrimmed = 6;           // comparisons of which the extremes do not count
constexpr size_t kFewComparisons = 5;    // that speak of what is beyond doubt only
constexpr size_t kHalf = 8;              // that are remembered through a hold
constexpr size_t kMost = 16;             // that are remembered; then who is ahead has won
constexpr int64_t kCompareEvery = 48;    // steps after which some go without again
constexpr int64_t kCompareSeldom = 768;  // where drafting has clearly won,
constexpr int64_t kCompareOften = 384;   // and where it has won by less, and a look costs less
constexpr int64_t kClearTimes = 8;       // it becomes more seldom, where that is clear
constexpr double kTrialShare = 0.0025;   // of the time may be lost in trials without hope,
constexpr double kFirstShare = 0.01;     // and in the first few: an estimate that rests on one
constexpr int kFirstTrials = 8;          // comparison may be luck
constexpr int64_t kShortestHold = 192;   // steps
constexpr int64_t kLongestHold = 4096;   // the first time; it doubles with every further loss
constexpr int kMostDoublings = 8;
constexpr int64_t kEarlyHold = 16;  // times what was seen before, unless it lost
constexpr double kHeavy = 0.5;      // more than this, in logarithms
constexpr double kLossShare = 128;  // turns may lose this part of the time until the next ones
constexpr double kLongest = 3;      // times the median
constexpr double kSpread = 48;      // steps
constexpr double kPrior = 16;       // steps
constexpr double kMemory = 512;     // steps
constexpr double kAsked = 256;      // steps whose estimates are averaged
constexpr int64_t kRecalled = 16;   // steps for which a belief holds
constexpr double kLuck = 2;         // standard errors: it is looked at again and again
constexpr int kExact = 8;           // loads up to here have buckets of their own
constexpr int kPerOctave = 4;

// Standard errors.
constexpr double kTolerated = 0.5;
constexpr double kSure = 2;
constexpr double kDoubtless = 3;
constexpr double kVerySure = 4;
constexpr double kRefuted = 3;  // the estimate

// Of logarithms of gains.
constexpr double kEstimateError = 0.06;  // of what is estimated
constexpr double kFirstError = 0.08;     // of one comparison, however alike its steps are
constexpr double kLeastRelease = 0.04;   // what ends a hold
constexpr double kNoNoise = 0.2;         // a gain over its average that is none
constexpr double kClear = 0.22;
constexpr double kSameEstimate = 0.002;

}  // namespace

// What a step counts at most.
double SpeculationGate::Longest(const std::vector<Sample>& steps) {
  std::vector<double> seconds;
  for (const Sample& step : steps) seconds.push_back(step.seconds);
  const auto middle = seconds.begin() + static_cast<int64_t>(seconds.size()) / 2;
  std::nth_element(seconds.begin(), middle, seconds.end());
  return kLongest * *middle;
}

// A ratio estimator: the sum of the tokens over the sum of what was expected in the time, its error
// from what every step is away from that ratio (Cochran 1977, chapter 6).
double SpeculationGate::Block::Share(double* error) const {
  if (steps.empty()) return 0;
  const double longest = Longest(steps);
  double tokens = 0, expected = 0;
  for (const Sample& step : steps) {
    tokens += step.tokens;
    expected += std::min(step.seconds, longest) * step.expected;
  }
  if (!(expected > 0) || !(tokens > 0)) return 0;
  const double share = tokens / expected;
  if (error == nullptr) return share;
  double squares = 0;
  for (const Sample& step : steps) {
    squares += std::pow(step.tokens - share * std::min(step.seconds, longest) * step.expected, 2);
  }
  *error = std::sqrt(squares) / tokens;
  return share;
}

int SpeculationGate::LoadBucket(int load) {
  if (load <= kExact) return load;
  return kExact +
         static_cast<int>(std::lround(kPerOctave * std::log2(static_cast<double>(load) / kExact)));
}

void SpeculationGate::Observe(int load, bool with, const Step& step) {
  Bucket& bucket = Of(load);
  Sample sample{step.tokens, step.seconds, step.expected};
  credit_ += (trials_ < kFirstTrials ? kFirstShare : kTrialShare) * step.seconds;
  ++bucket.seen;
  const bool cold = bucket.cold.Observe(with, [&] {
    // The first few turns are to be short.
    return bucket.comparisons.size() >= kFewComparisons &&
           std::abs(Recalled(bucket).mean) <= kHeavy;
  });
  if (!with) {
    bucket.steps = 0;
    bucket.left = std::max<int64_t>(0, bucket.left - 1);
    if (cold) return;
    if (bucket.without.steps.size() == kPlain) {
      // Held back, or nothing was wanted: the last ones are what comes next is compared with.
      bucket.without.steps.erase(bucket.without.steps.begin());
      bucket.before = bucket.after = {};
    }
    bucket.without.steps.push_back(sample);
    bucket.compared = bucket.without.steps.size() == kPlain;
    return;
  }
  ++bucket.steps;
  if (step.settling) {
    bucket.debt += step.catching_up;
    return;
  }
  if (step.likely > 0) {
    // At first as if kPrior such steps had borne the estimate out.
    if (bucket.likely == 0) bucket.tokens = bucket.likely = kPrior * step.likely;
    bucket.tokens += step.tokens - bucket.tokens / kMemory;
    bucket.likely += step.likely - bucket.likely / kMemory;
    sample.tokens = step.likely * bucket.tokens / bucket.likely;
    bucket.off += std::pow(step.tokens - sample.tokens, 2) - bucket.off / kMemory;
  }
  // What would be expected without: estimates of the gain are noisier than what is measured of it.
  sample.expected /= bucket.gain;
  bucket.debt += step.catching_up;
  const double share = bucket.debt / kSpread;
  sample.seconds += share - step.catching_up;
  bucket.debt -= share;
  if (!bucket.settled) {
    // Against what those without would have yielded in the time.
    const double plain = bucket.without.Share();
    // An interruption is no loss.
    const std::vector<Sample>& like = (bucket.compared ? bucket.after : bucket.before).steps;
    const double seconds = like.empty() ? step.seconds : std::min(step.seconds, Longest(like));
    bucket.lost += (seconds * sample.expected * plain - sample.tokens) / load;
  }
  if (cold) return;
  Block& block = bucket.compared ? bucket.after : bucket.before;
  if (block.steps.size() == kBlock) block.steps.erase(block.steps.begin());
  block.steps.push_back(sample);
  if (!bucket.compared) return;
  const bool first = !bucket.settled && bucket.before.steps.empty();
  if (block.steps.size() == kBlock ||
      (first && block.steps.size() >= kBlock / 2 &&
       Measured(bucket) + kVerySure * std::max(Error(bucket), kFirstError) < 0)) {
    Compare(bucket);
  }
}

// The steps without stand between those with drafts, so what drifts is the same for both.
double SpeculationGate::Measured(const Bucket& bucket) {
  const double before = bucket.before.Share(), after = bucket.after.Share(),
               without = bucket.without.Share();
  if (!(after > 0) || !(without > 0)) return 0;
  return std::log((before > 0 ? std::sqrt(before * after) : after) / without);
}

// Of the first comparison, of which there is one side only, by how much its steps differ.
double SpeculationGate::Error(const Bucket& bucket) {
  double with = 0, without = 0;
  bucket.after.Share(&with);
  bucket.without.Share(&without);
  return std::hypot(with, without);
}

void SpeculationGate::Compare(Bucket& bucket) {
  bucket.own_error = Error(bucket);
  bucket.believed_for = std::numeric_limits<double>::quiet_NaN();
  if (bucket.comparisons.size() == kMost) bucket.comparisons.erase(bucket.comparisons.begin());
  bucket.comparisons.push_back({.measured = Measured(bucket), .estimated = bucket.log_gain});
  bucket.before = std::move(bucket.after);
  bucket.after = {};
  bucket.compared = false;
  Judge(bucket);
}

// Where the estimate has moved since, it may have learned what was measured then, or the gain may
// have moved with it: it gets the benefit of the doubt.
double SpeculationGate::Surprise(const Bucket& bucket, const Comparison& comparison) {
  const double moved = bucket.log_gain - comparison.estimated;
  const auto [least, most] = std::minmax({comparison.measured, comparison.measured + moved});
  return std::clamp(bucket.log_gain, least, most) - bucket.log_gain;
}

SpeculationGate::Belief SpeculationGate::Believed(const Bucket& bucket) {
  const size_t count = bucket.comparisons.size();
  if (count == 0) return {bucket.log_gain, kEstimateError};
  std::vector<double> surprises;
  for (const Comparison& comparison : bucket.comparisons) {
    surprises.push_back(Surprise(bucket, comparison));
  }
  std::sort(surprises.begin(), surprises.end());
  // One that an interruption spoilt must not decide.
  const size_t cut = count >= kTrimmed ? 1 : 0;
  double sum = 0, squares = 0;
  for (size_t i = cut; i < count - cut; ++i) sum += surprises[i];
  const double n = static_cast<double>(count - 2 * cut), mean = sum / n;
  for (size_t i = cut; i < count - cut; ++i) squares += std::pow(surprises[i] - mean, 2);
  double error = n > 1 ? std::sqrt(squares / (n - 1) / n) : bucket.own_error;
  error = std::max(error, kFirstError / std::sqrt(n));
  if (bucket.likely > 0) error += kLuck * std::sqrt(bucket.off) / bucket.tokens;
  // What cannot be chance refutes the estimate.
  if (std::abs(mean) > kRefuted * std::hypot(error, kEstimateError)) {
    return {bucket.log_gain + mean, error};
  }
  const double measured = 1 / (error * error), estimated = 1 / (kEstimateError * kEstimateError);
  return {bucket.log_gain + mean * measured / (measured + estimated),
          1 / std::sqrt(measured + estimated)};
}

const SpeculationGate::Belief& SpeculationGate::Recalled(Bucket& bucket) {
  if (bucket.asked % kRecalled == 0 ||
      !(std::abs(bucket.log_gain - bucket.believed_for) < kSameEstimate)) {
    bucket.belief = Believed(bucket);
    bucket.believed_for = bucket.log_gain;
  }
  return bucket.belief;
}

void SpeculationGate::Judge(Bucket& bucket) {
  const Belief belief = Believed(bucket);
  const size_t count = bucket.comparisons.size();
  const double sure = kVerySure * std::max(belief.error, kFirstError);
  // What is estimated now may be less than it was of late.
  const double change = std::log(bucket.gain) - bucket.log_gain;
  const double now = belief.mean + (change < -kNoNoise ? change : 0);
  const size_t enough = bucket.trial || bucket.gain < 1 ? kTrial : kEnough;
  const double margin = bucket.trial || count == kMost ? 0 : belief.error;
  if (belief.mean + sure < 0 || (belief.mean + margin < 0 && count >= enough)) {
    return Hold(bucket);
  }
  if (!bucket.settled && now < kSure * belief.error && count < kMost) return;
  const double last = bucket.comparisons.back().measured;
  const bool clear = last > kClear && now > kDoubtless * belief.error;
  // Step by step: one comparison alone may be a neighbour's doing.
  const int64_t times = clear ? kClearTimes : last > 0 && now > belief.error ? 2 : 0;
  bucket.compare_after = bucket.settled ? std::clamp(times * bucket.compare_after, kCompareEvery,
                                                     clear ? kCompareSeldom : kCompareOften)
                                        : kCompareEvery;
  bucket.settled = true;
  bucket.trial = false;
  bucket.losses = 0;
  bucket.lost = 0;
}

void SpeculationGate::Hold(Bucket& bucket) {
  const Belief belief = Believed(bucket);
  int64_t longest = kLongestHold << std::min(bucket.losses++, kMostDoublings);
  if (belief.mean + kDoubtless * belief.error > 0) {
    longest = std::clamp(bucket.seen, kShortestHold, longest);
  } else if (belief.mean > -kHeavy) {
    longest = std::clamp(kEarlyHold * bucket.seen, kShortestHold, longest);
  }
  bucket.believed_for = std::numeric_limits<double>::quiet_NaN();
  bucket.left = std::clamp(static_cast<int64_t>(kLossShare * bucket.lost), kShortestHold, longest);
  bucket.lost = bucket.debt = 0;
  bucket.before = bucket.after = {};
  bucket.compared = true;
  // Half of it is forgotten by then.
  if (bucket.comparisons.size() > kHalf) {
    bucket.comparisons.erase(bucket.comparisons.begin(), bucket.comparisons.end() - kHalf);
  }
  bucket.compare_after = 0;
  bucket.settled = bucket.trial = false;
}

bool SpeculationGate::ShouldSkip(int load, double gain, double cost) {
  if (gain < kLeastGain) return true;
  Bucket& bucket = Of(load);
  bucket.gain = gain;
  const double weight = std::max(1 / kAsked, 2 / static_cast<double>(++bucket.asked + 1));
  bucket.log_gain += weight * (std::log(gain) - bucket.log_gain);
  const Belief& belief = Recalled(bucket);
  const double grown = std::log(gain) - bucket.log_gain;
  if (belief.mean + (grown > kNoNoise ? grown : 0) > kLeastRelease) bucket.left = 0;
  if (bucket.left > 0 || bucket.without.steps.size() < kPlain) return true;
  // Not for what may be chance.
  const bool losing = belief.mean + kTolerated * belief.error < 0;
  if (losing && bucket.settled) {
    bucket.settled = false;
    bucket.compare_after = 0;
  }
  if (losing && !bucket.trial && bucket.steps == 0) {
    if (credit_ < cost) return true;
    credit_ -= cost;
    ++trials_;
    bucket.trial = true;
  }
  if (bucket.compared || bucket.steps < std::max<int64_t>(bucket.compare_after, kBlock)) {
    return false;
  }
  bucket.without = {};
  return true;
}

}  // namespace espalier
