// Visits all outcomes of a computation that takes its chance from Choose: run it until Next is
// false, and add up what came out by weight().
#pragma once

#include <vector>

#include "serving/speculative/rejection_sampling.h"

namespace espalier {

class OutcomeEnumerator {
 public:
  // An index with its probability; those of probability zero are never taken. The probabilities at
  // one place may depend on the choices before it alone.
  int Choose(const std::vector<double>& probabilities) {
    if (at_ == script_.size()) script_.push_back({0, probabilities});
    Choice& choice = script_[at_++];
    while (choice.probabilities[choice.taken] <= 0) ++choice.taken;
    weight_ *= choice.probabilities[choice.taken];
    return choice.taken;
  }
  long double weight() const { return weight_; }

  bool Next() {
    weight_ = 1;
    at_ = 0;
    while (!script_.empty()) {
      Choice& last = script_.back();
      for (++last.taken; last.taken < static_cast<int>(last.probabilities.size()); ++last.taken) {
        if (last.probabilities[last.taken] > 0) return true;
      }
      script_.pop_back();
    }
    return false;
  }

 private:
  struct Choice {
    int taken;
    std::vector<double> probabilities;
  };
  std::vector<Choice> script_;
  size_t at_ = 0;
  long double weight_ = 1;
};

// Verification whose chance is enumerated.
class EnumeratedRng : public VerificationRng {
 public:
  explicit EnumeratedRng(OutcomeEnumerator& enumeration) : enumeration_(enumeration) {}
  bool Accept(double probability, int) override {
    return enumeration_.Choose({probability, 1 - probability}) == 0;
  }
  int Draw(const Distribution& p, int) override { return enumeration_.Choose(p); }

 private:
  OutcomeEnumerator& enumeration_;
};

}  // namespace espalier
