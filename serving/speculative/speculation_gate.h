// A/B test of whether drafting pays, by measured goodput (tokens per second of whole steps) with
// and without it. The draft policy (draft_policy.h) chooses trees by estimates; this is the check
// by the clock, which includes what estimates omit (host work, cache effects, thread wake-ups).
// Where drafting lost, it is skipped for a time: so long that the next trial costs a small fraction
// of the time, with bounds by the number of losses and the steps seen.
//
// Only steps close in time are compared: a few without drafts, and the few with drafts before and
// after. The result is combined with the estimate by their errors (normal prior, normal
// likelihood). Warm-up steps after a change are excluded after a few comparisons; prefill time of
// an SSM is spread over the following steps.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include "serving/speculative/warmup_steps.h"

namespace espalier {

class SpeculationGate {
 public:
  struct Step {
    double tokens = 0;  // that it yielded
    double seconds = 0;
    double expected = 0;  // tokens per second, as it was estimated
    // The tokens that were to be expected of the trees as they were verified; 0: not known. On
    // average that is put right by `tokens`; step by step it varies far less.
    double likely = 0;
    double catching_up = 0;  // the part of `seconds` that these requests will not need again
    // Some were only caught up with, and not drafted for: how drafting does cannot be seen here.
    bool settling = false;
  };

  // Records a step that decoded `load` requests and ran no prompt.
  void Observe(int load, bool with, const Step& step);

  // Returns whether the coming step should not draft: drafting lost, or a comparison is due.
  // `gain`: estimated rate with drafts over that without. Below 1 only a trial can tell; trials,
  // which may lose `cost` seconds each, get a small share of the time.
  bool ShouldSkip(int load, double gain = 1, double cost = 0);

  // Equal for loads that are judged together.
  static int LoadBucket(int load);

  // A smaller gain counts as a loss.
  static constexpr double kLeastGain = 0.8;

 private:
  struct Sample {
    double tokens;
    double seconds;   // catching up spread
    double expected;  // tokens per second without drafts
  };
  static double Longest(const std::vector<Sample>& steps);  // seconds
  // Steps in a row of one arm, the last few.
  struct Block {
    std::vector<Sample> steps;
    // Of the rate that was expected; 0 without steps. A step's time counts up to a few times the
    // median: what is longer was an interruption.
    // `error`: if given, the relative standard error.
    double Share(double* error = nullptr) const;
  };
  // Logarithms of gains.
  struct Comparison {
    double measured;
    double estimated;  // on average, of late
  };
  // Of the logarithm of the gain: mean and standard error.
  struct Belief {
    double mean, error;
  };
  struct Bucket {
    Block before, without, after;  // of the comparison that is under way
    bool compared = false;         // all steps without have come: `after` fills
    WarmupSteps cold;
    std::vector<Comparison> comparisons;  // the last ones
    double own_error = 0;                 // of the last one by itself
    bool settled = false;                 // drafting won: comparisons are seldom
    int64_t seen = 0;                     // steps of all
    int64_t steps = 0;                    // with drafts, since the last one without
    int64_t compare_after = 0;            // so many of these
    int64_t left = 0;                     // steps for which it is held back
    int losses = 0;                       // in a row
    bool trial = false;                   // it is tried though no gain is expected
    double lost = 0;                      // steps without, that the turns have cost
    double gain = 1;                      // that was asked about last
    double log_gain = 0;                  // on average, of late
    int64_t asked = 0;                    // how often
    // Sums that fade; the last one of what the tokens were off the estimate, squared.
    double tokens = 0, likely = 0, off = 0;
    double debt = 0;  // seconds of catching up that are not spread yet
    Belief belief;    // what was believed
    double believed_for = std::numeric_limits<double>::quiet_NaN();  // at which log_gain
  };

  Bucket& Of(int load) { return buckets_[LoadBucket(load)]; }
  // The logarithm of the gain, of the comparison that is under way.
  static double Measured(const Bucket& bucket);
  static double Error(const Bucket& bucket);
  static Belief Believed(const Bucket& bucket);
  // The same, found anew only where it may have changed.
  static const Belief& Recalled(Bucket& bucket);
  // By how much the present estimate is wrong, by that comparison.
  static double Surprise(const Bucket& bucket, const Comparison& comparison);
  void Compare(Bucket& bucket);
  void Judge(Bucket& bucket);
  void Hold(Bucket& bucket);

  std::map<int, Bucket> buckets_;
  double credit_ = 0;  // seconds that trials may lose
  int trials_ = 0;     // that there were
};

}  // namespace espalier
