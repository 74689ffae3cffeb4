// Whether a way of drafting pays, by what whole steps yielded with it and without it: tokens per
// second by the clock on the wall, of the rate that was expected of the same step. The tuner's
// estimates (tuning.h) choose trees; this is the check on them. What they leave out (the host's own
// work, caches that models take from each other, threads that fall asleep) and what they get wrong
// shows here: where the estimates are near each other, the clock decides. Drafting is held back
// where it lost: for so long that the next trial, losing as much, would cost a small part of the
// time, but not for long before it has lost several times, nor for longer than the load has been
// seen, or some times that if the loss is beyond doubt: in the beginning drafts are worse than they
// will be.
//
// A machine may be half as fast for a second, and only neighbours in time can be compared: a few
// steps without, and the few with drafts just before and after. Even so one comparison may be a
// sixth off, and many would cost more than there is to be won: what they say is weighed against the
// estimate, which is rarely far off, by how much each is to be trusted (normal prior and normal
// errors). While it is not known who wins, the two take turns; then a comparison comes now and
// then. The first steps after a change find other things in the caches, and take up to 1.4 times as
// long as those that follow: after a few comparisons they count no more. What an SSM catches up
// when it starts on a request is spread over the steps that follow, which have the good of it.
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

  // Of a step that decoded `load` requests and ran no prompt.
  void Observe(int load, bool with, const Step& step);

  // Whether the coming step of that load should go without. Also true where some steps without are
  // due for a comparison. `gain`: the rate that is estimated with drafts, over that without. Below
  // 1 only a trial can tell; trials, which may lose `cost` seconds each, get a small share of the
  // time.
  bool ShouldSkip(int load, double gain = 1, double cost = 0);

  // The same for loads that are alike, which are judged as one.
  static int LoadBucket(int load);

  // A gain below this is believed to be none.
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
