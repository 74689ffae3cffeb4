// Whether a way of drafting pays, by what whole steps yielded with it and without it: tokens per
// second by the clock on the wall, of the rate that was expected of the same step. The tuner's
// estimates (tuning.h) choose trees; this is the check on them. What they leave out (the host's own
// work, caches that models take from each other, threads that fall asleep) and what they get wrong
// shows here: where the estimates are near each other, the clock decides. Drafting is held back
// where it lost: for so long that the next trial, losing as much, would cost less than a hundredth
// of the time, but not for long before it has lost several times.
//
// The two arms of one load are compared with each other alone, by their last steps, so a machine
// that becomes slower for both changes little, nor do requests that grow longer; and before
// drafting is held back, some fresh steps without it must bear that out. What an SSM catches up
// when it starts on a request is spread over the steps that follow, which have the good of it.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace espalier {

class Payoff {
 public:
  struct Step {
    int tokens = 0;  // that it yielded
    double seconds = 0;
    double expected = 0;  // tokens per second, as it was estimated
    // The tokens that were to be expected of the trees as they were verified; 0: not known. On
    // average that is put right by `tokens`; step by step it varies far less.
    double likely = 0;
    double catching_up = 0;  // the part of `seconds` that these requests will not need again
  };

  // Of a step that decoded `load` requests and ran no prompt.
  void Observe(int load, bool with, const Step& step);

  // Whether the coming step of that load should go without. Also true where too few steps went
  // without to compare with. `gain`: the rate that is estimated with drafts, over that without.
  // Below 1 only a trial can tell; trials, which may lose `cost` seconds each, get a small share of
  // the time.
  bool Withholds(int load, double gain = 1, double cost = 0);

  // A gain below this is believed to be none.
  static constexpr double kLeastGain = 0.8;

 private:
  static constexpr int64_t kCompareEvery = 48;  // steps after which some go without again

  struct Sample {
    double tokens;
    double seconds;   // catching up spread
    double expected;  // tokens per second
    double spread;    // seconds of catching up that are not in `seconds` for that
  };
  struct Arm {
    std::vector<Sample> steps;  // a ring
    int64_t next = 0;
    struct Yield {
      double share = 0;  // of the rate that was expected
      double error = 0;  // standard error of that
    };
    // A step's time counts up to a few times the median: what is longer was an interruption.
    double Longest() const;
    Yield Measure() const;
  };
  struct Bucket {
    Arm with, without;
    int64_t steps = 0;                      // since the last one without
    int64_t compare_after = kCompareEvery;  // so many of these
    int64_t left = 0;                       // steps for which it is held back
    bool wins = false, clear = false;       // as last judged: beyond doubt, and by far
    int losses = 0;                         // in a row
    int plain_left = 0;                     // steps without that are to come for a comparison
    bool doubted = false;                   // these are to show whether it lost
    bool trial = false;                     // it is tried though no gain is expected
    double gain = 1;                        // that was asked about last
    double lost_at = 0;                     // gain that would have been enough
    // Sums that fade; the last one of what the tokens were off the estimate, squared.
    double tokens = 0, likely = 0, off = 0;
    double debt = 0;  // seconds of catching up that are not spread yet
  };

  // Loads that are alike share one.
  Bucket& Of(int load);
  void Judge(int load, Bucket& bucket);

  std::map<int, Bucket> buckets_;
  double credit_ = 0;  // seconds that trials may lose
};

}  // namespace espalier
