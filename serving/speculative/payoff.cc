#include "serving/speculative/payoff.h"

#include <algorithm>
#include <cmath>

namespace espalier {
namespace {

constexpr size_t kBlock = 8;             // steps with drafts, on each side of a comparison
constexpr size_t kPlain = 4;             // steps without
constexpr size_t kEnough = 4;            // comparisons to judge by
constexpr size_t kTrial = 2;             // likewise, where no gain is expected
constexpr size_t kTrimmed = 6;           // comparisons of which the extremes do not count
constexpr size_t kMost = 16;             // after which who is ahead has won
constexpr int kAgainst = 2;              // comparisons in a row that raise a doubt
constexpr double kFarAgainst = -0.2;     // or one like this
constexpr int64_t kCompareEvery = 48;    // steps after which some go without again
constexpr int64_t kCompareSeldom = 768;  // where the last comparisons were clear
constexpr double kClear = 0.22;          // log of the rate with drafts over that without
constexpr double kSomewhat = 0.05;       // likewise, where it is beyond doubt
constexpr double kTrialShare = 0.0025;   // of the time may be lost in trials without hope
constexpr int64_t kShortestHold = 192;   // steps
constexpr int64_t kLongestHold = 4096;   // the first time; it doubles with every further loss
constexpr int kMostDoublings = 8;
constexpr double kLossShare = 128;  // turns may lose this part of the time until the next ones
constexpr double kLongest = 3;      // times the median
constexpr double kSpread = 48;      // steps
constexpr double kPrior = 16;       // steps
constexpr double kMemory = 512;     // steps
constexpr double kSure = 1.5;       // standard errors
constexpr double kDoubtless = 3;    // likewise
constexpr double kVerySure = 4;     // likewise
constexpr double kLeastError = 0.02;
constexpr double kFirstError = 0.08;  // of one comparison, however alike its steps are
constexpr double kLuck = 2;           // standard errors: it is looked at again and again
constexpr double kRelease = 1.25;     // times the gain that would have been enough
constexpr int kExact = 8;             // loads up to here have buckets of their own
constexpr int kPerOctave = 4;

}  // namespace

// What a step counts at most.
double Payoff::Longest(const std::vector<Sample>& steps) {
  std::vector<double> seconds;
  for (const Sample& step : steps) seconds.push_back(step.seconds);
  const auto middle = seconds.begin() + static_cast<int64_t>(seconds.size()) / 2;
  std::nth_element(seconds.begin(), middle, seconds.end());
  return kLongest * *middle;
}

// A ratio estimator: the sum of the tokens over the sum of what was expected in the time, its error
// from what every step is away from that ratio (Cochran 1977, chapter 6).
double Payoff::Block::Share(double* error) const {
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

Payoff::Bucket& Payoff::Of(int load) {
  const int bucket =
      load <= kExact ? load
                     : kExact + static_cast<int>(std::lround(
                                    kPerOctave * std::log2(static_cast<double>(load) / kExact)));
  return buckets_[bucket];
}

void Payoff::Observe(int load, bool with, const Step& step) {
  Bucket& bucket = Of(load);
  Sample sample{static_cast<double>(step.tokens), step.seconds, step.expected};
  credit_ += kTrialShare * step.seconds;
  if (!with) {
    bucket.steps = 0;
    bucket.left = std::max<int64_t>(0, bucket.left - 1);
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
    bucket.lost += ((seconds * step.expected / bucket.gain) * plain - sample.tokens) / load;
  }
  Block& block = bucket.compared ? bucket.after : bucket.before;
  if (block.steps.size() == kBlock) block.steps.erase(block.steps.begin());
  block.steps.push_back(sample);
  if (!bucket.compared) return;
  const bool first = bucket.ratios.empty() && bucket.before.steps.empty();
  if (block.steps.size() == kBlock ||
      (first && block.steps.size() >= kBlock / 2 &&
       LogRatio(bucket) + kVerySure * std::max(Error(bucket), kFirstError) < 0)) {
    Compare(bucket);
  }
}

// The steps without stand between those with drafts, so what drifts is the same for both.
double Payoff::LogRatio(const Bucket& bucket) {
  const double before = bucket.before.Share(), after = bucket.after.Share(),
               without = bucket.without.Share();
  if (!(after > 0) || !(without > 0)) return 0;
  return std::log(bucket.gain * (before > 0 ? std::sqrt(before * after) : after) / without);
}

// Of the first comparison, of which there is one side only, by how much its steps differ.
double Payoff::Error(const Bucket& bucket) {
  double with = 0, without = 0;
  bucket.after.Share(&with);
  bucket.without.Share(&without);
  return std::hypot(with, without);
}

void Payoff::Compare(Bucket& bucket) {
  bucket.own_error = Error(bucket);
  bucket.ratios.push_back(LogRatio(bucket));
  bucket.before = std::move(bucket.after);
  bucket.after = {};
  bucket.compared = false;
  Judge(bucket);
}

void Payoff::Judge(Bucket& bucket) {
  const double last = bucket.ratios.back();
  if (bucket.settled) {
    bucket.against = last < 0 ? bucket.against + 1 : 0;
    bucket.compare_after = last > kClear ? kCompareSeldom
                           : last > 0    ? std::min(2 * bucket.compare_after, kCompareSeldom)
                                         : kCompareEvery;
    if (bucket.against < kAgainst && last > kFarAgainst) return;
    bucket.settled = false;
    bucket.ratios.clear();
    bucket.compare_after = bucket.against = 0;
    bucket.lost = 0;
    return;
  }
  const size_t count = bucket.ratios.size();
  std::vector<double> ratios = bucket.ratios;
  std::sort(ratios.begin(), ratios.end());
  // One that an interruption spoilt must not decide.
  const size_t cut = count >= kTrimmed ? 1 : 0;
  double sum = 0, squares = 0;
  for (size_t i = cut; i < count - cut; ++i) sum += ratios[i];
  const double n = static_cast<double>(count - 2 * cut), mean = sum / n;
  for (size_t i = cut; i < count - cut; ++i) squares += std::pow(ratios[i] - mean, 2);
  double error = n > 1 ? std::sqrt(squares / (n - 1) / n) : 0;
  if (bucket.likely > 0) error += kLuck * std::sqrt(bucket.off) / bucket.tokens;
  if (count == 1) error = std::max({error, bucket.own_error, kFirstError});
  const double sure = kVerySure * std::max(error, kLeastError);
  const bool plain = mean + sure<0, drafts = mean - sure> 0;
  const size_t enough = bucket.trial ? kTrial : kEnough;
  const bool lost = bucket.trial ? mean - error < 0 : mean + kSure * error < 0;
  // What is not expected to pay has to show it.
  const bool hopeless = bucket.gain < 1 && mean < 0 && count >= kTrial;
  if (plain || hopeless || (count >= enough && lost) || (count >= kMost && mean < 0)) {
    return Hold(bucket, mean);
  }
  if (!drafts && (count < enough || (mean - error < 0 && count < kMost))) return;
  bucket.settled = true;
  bucket.trial = false;
  bucket.losses = bucket.against = 0;
  bucket.compare_after =
      mean > std::max(kSomewhat, kDoubtless * error) ? kCompareSeldom : kCompareEvery;
}

void Payoff::Hold(Bucket& bucket, double mean) {
  const int64_t longest = kLongestHold << std::min(bucket.losses++, kMostDoublings);
  bucket.left = std::clamp(static_cast<int64_t>(kLossShare * bucket.lost), kShortestHold, longest);
  bucket.lost_at = bucket.gain * std::exp(-mean);
  bucket.lost = bucket.debt = 0;
  bucket.before = bucket.after = {};
  bucket.compared = true;
  bucket.ratios.clear();
  bucket.compare_after = 0;
  bucket.trial = false;
}

bool Payoff::Withholds(int load, double gain, double cost) {
  if (gain < kLeastGain) return true;
  Bucket& bucket = Of(load);
  bucket.gain = gain;
  if (bucket.left > 0 && gain > kRelease * bucket.lost_at) bucket.left = 0;
  if (bucket.left > 0 || bucket.without.steps.size() < kPlain) return true;
  if (gain < 1 && !bucket.trial && !bucket.settled && bucket.steps == 0 && bucket.ratios.empty()) {
    if (credit_ < cost) return true;
    credit_ -= cost;
    bucket.trial = true;
  }
  if (bucket.compared || bucket.steps < std::max<int64_t>(bucket.compare_after, kBlock)) {
    return false;
  }
  bucket.without = {};
  return true;
}

}  // namespace espalier
