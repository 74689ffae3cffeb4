// Enumerates all outcomes of a randomized computation, for exact tests: run the computation, which
// calls Choose for every random decision, until Next returns false, and add up the outcomes by
// weight().
#pragma once

#include <vector>

#include "serving/speculative/rejection_sampling.h"

namespace espalier {

class OutcomeEnumerator {
 public:
  // Returns an index, with its probability multiplied into weight(). Indices of probability zero
  // are skipped. The probabilities may depend on earlier choices only.
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

// Enumerates the random decisions of verification.
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
