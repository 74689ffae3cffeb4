// Acceptance rates of one drafter: how often its proposals equal the LLM's token, given that their
// parents did. Two views of the same trials: by the drafter's own probability and depth (which
// orders known candidates), and by depth and rank among siblings (which predicts drafts before they
// are made). Counts decay, so that old text is forgotten, and start from a prior, so that a few
// trials do not decide.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace espalier {

// One candidate below a node that the LLM agreed with. Its outcome is known, whether or not it was
// verified.
struct DraftTrial {
  int depth = 1;           // of the candidate
  int rank = 0;            // among its siblings, by this drafter
  double probability = 0;  // by the drafter
  bool accepted = false;
  double expected_acceptance = -1;  // of a candidate that was not made, instead of `accepted`
};

// Returns the chance whose odds of failure are `failing` times those of `chance`.
inline double ScaleFailureOdds(double chance, double failing) {
  return chance / (chance + (1 - chance) * failing);
}

// A factor on the odds of failure, relative to estimated chances, shrunk towards 1: online logistic
// regression of one parameter, one Newton step per trial. Where most chances are near 1, failures
// carry most of the information; a factor on the chances themselves would weight successes instead.
class FailureOdds {
 public:
  double value() const { return value_; }
  // `chance`: the estimate without this factor. `memory`: trials after which the weight of a trial
  // is 1/e.
  void Observe(double chance, bool accepted, double memory);
  void Fade(double keep);

 private:
  double logarithm_ = 0, value_ = 1;
  double information_ = 0;  // Fisher information of the trials
};

class AcceptanceEstimator {
 public:
  static constexpr int kDepths = 16;  // deeper ones count as the last
  static constexpr int kRanks = 8;
  // upper bound of chances, so that values fall along every path
  static constexpr double kMost = 0.998;

  AcceptanceEstimator() : AcceptanceEstimator(false) {}
  // For drawn proposals. They are accepted about as often as the models agree, whatever their
  // probability, because the test takes that into account (rejection_sampling.h).
  static AcceptanceEstimator OfDraws();

  void Observe(const DraftTrial& trial) {
    if (trial.expected_acceptance < 0) ObserveProbability(trial);
    ObserveRank(trial);
  }
  // Updates the second view only.
  void ObserveRank(const DraftTrial& trial);

  // Call once per step. Ranks and depths that are not tried any more are slowly forgotten, so that
  // a few unlucky trials are not the last ones.
  void Fade();

  // Returns the chance of a candidate with this probability and rank by the drafter, at this depth
  // (from 1).
  double OfProbability(double probability, int depth, int rank) const;
  // The smallest value of OfProbability for any probability.
  double Least(int depth, int rank) const;
  // Returns the chance of the candidate with this rank at this depth (from 1), whatever its
  // probability. Depths without enough trials are estimated from shallower ones.
  double OfRank(int depth, int rank) const;

  // Expected acceptance of the best trees of 1, 2, ... nodes, of at most `depth` levels, with ranks
  // below `ranks`: the most probable node first. This is Sequoia's positional model (Chen et al.
  // 2024); because chances fall along a path, the best tree of n nodes is the n best paths.
  struct Node {
    double value;  // chance that it is accepted
    int depth;     // from 1
    int parent;    // index in the list, -1: the root
  };
  std::vector<Node> BestNodes(int depth, int count, int ranks = kRanks) const;

 private:
  explicit AcceptanceEstimator(bool draws);
  void ObserveProbability(const DraftTrial& trial);
  struct Rate {
    double accepted = 0, trials = 0;
    double Shrunk(double prior, double prior_trials) const;
    void Add(double weight, double hit);  // 1: it was one, 0: it was none
  };
  static constexpr int kBins = 14;
  static constexpr int kRankClasses = 3;   // first, second, others
  static constexpr int kDepthClasses = 8;  // deeper ones count as the last

  static double Prior(bool draws, int rank_class, int bin);
  double AtAnyDepth(double probability, int rank) const;
  double FailingAt(int depth, int rank) const;

  bool draws_ = false;
  int64_t steps_ = 0;
  std::array<std::array<Rate, kBins>, kRankClasses> by_probability_;
  std::array<std::array<double, kBins>, kRankClasses> probability_values_;     // of these
  std::array<std::array<FailureOdds, kDepthClasses>, kRankClasses> by_depth_;  // beside these
  std::array<std::array<Rate, kRanks>, kDepths> by_rank_;
  mutable std::array<std::array<double, kDepths>, kRanks> rank_values_{};
  mutable std::array<bool, kRanks> known_{};  // rank_values_, by rank
};

// How one request's acceptance compares to the drafter's average, shrunk towards 1.
class RequestAcceptance {
 public:
  // A factor on the expected number of accepted tokens, before drafting.
  double value() const { return (accepted_ + kPrior) / (expected_ + kPrior); }
  // A factor on the odds of failure of one candidate.
  double failing() const { return failing_.value(); }
  void Observe(double expected, bool accepted);
  // A step without trials: what was learned fades.
  void Fade();

 private:
  static constexpr double kPrior = 6;
  double accepted_ = 0, expected_ = 0;
  FailureOdds failing_;
};

}  // namespace espalier
