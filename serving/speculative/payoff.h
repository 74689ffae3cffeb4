// Whether a way of drafting pays, by what whole steps yielded with it and without it: tokens per
// second by the clock on the wall. The tuner's estimates (tuning.h) choose trees; this is the check
// on them. What they leave out (the host's own work, caches that models take from each other,
// threads that fall asleep) and what they get wrong shows here, and drafting is held back where it
// lost: for a while, then tried again, ever more rarely while it goes on to lose.
//
// The two arms of one load are compared with each other alone, by their last steps, so a machine
// that becomes slower for both changes little.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace espalier {

class Payoff {
 public:
  // Of a step that decoded `load` requests and ran no prompt.
  void Observe(int load, bool with, int tokens, double seconds);

  // Whether the coming step of that load should go without. Also true where too few steps went
  // without to compare with.
  bool Withholds(int load);

 private:
  static constexpr int64_t kCompareEvery = 256;  // steps after which some go without again

  struct Step {
    double tokens, seconds;
  };
  struct Arm {
    std::vector<Step> steps;  // a ring
    int64_t next = 0;
    struct Rate {
      double tokens_per_second = 0;
      double error = 0;  // standard error of that
    };
    // A step's time counts up to a few times the median: what is longer was an interruption.
    Rate Measure() const;
  };
  struct Bucket {
    Arm with, without;
    int64_t steps = 0;                      // since the last one without
    int64_t compare_after = kCompareEvery;  // so many of these
    int64_t left = 0;                       // steps for which it is held back
    int64_t next_hold = 0;                  // how long the next time; 0: the first time
  };

  // Loads that are alike share one.
  Bucket& Of(int load);

  std::map<int, Bucket> buckets_;
};

}  // namespace espalier
