// Compares drafting by SSMs with plain steps by the clock, because estimates of either may be
// wrong. Now and then a few steps run the other way (a trial); their rate over that of the steps
// before corrects the estimated gain. Trials may lose a small share of the time: credit accrues
// with time, and each trial pays for what it lost.
#pragma once

#include <cstdint>
#include <map>

namespace espalier {

class SpeculationGate {
 public:
  // `trial_share`: of the time, that trials may lose.
  explicit SpeculationGate(double trial_share = 0.005) : trial_share_(trial_share) {}

  // Returns whether the coming step, which decodes `load` requests and runs no prompt, should
  // draft. `gain`: estimated rate with drafts over the rate without. `seconds`: estimated for a
  // step without. `prefill`: seconds for prefilling the drafter first. `may_try`: a trial may
  // begin.
  bool ShouldDraft(int load, double gain, double seconds, double prefill = 0, bool may_try = true);

  // Whether a trial for this load is under way. Two gates must not try at the same time.
  bool in_trial(int load) const;

  // Whether the step of the last ShouldDraft is one of the first of a trial, which find CPU caches
  // full of other data.
  bool warming_up() const { return warming_up_; }

  struct Step {
    bool drafted = false;
    // Expected of the trees as they were verified: varies less than the tokens that came.
    double tokens = 0;
    double seconds = 0;
    bool open = true;       // there were requests to draft for
    bool settling = false;  // the drafter was only prefilled for them
  };
  // Records a step that decoded `load` requests and ran no prompt.
  void Observe(int load, const Step& step);

  int64_t trials() const { return trials_; }

 private:
  struct Arm {
    double tokens = 0, seconds = 0;
    double weight = 0;  // steps in these sums
    int steps = 0;      // open ones
  };
  // Loads of one power of two.
  struct Bucket {
    double log_gain = 0, asked = 0;     // estimated, average
    double correction = 0, trials = 0;  // of log_gain
    bool drafting = false;              // the present choice
    double seen = 0;                    // steps that were asked about
    bool in_trial = false;
    int warmup = 0;            // steps of the trial that do not count yet
    Arm present, trial;        // `present` decays
    double trial_seconds = 0;  // including warmup
    double credit = 0;         // seconds that trials may lose
  };
  static void EndTrial(Bucket& bucket);

  double trial_share_;
  std::map<int, Bucket> buckets_;
  bool warming_up_ = false;
  int64_t trials_ = 0;
};

}  // namespace espalier
