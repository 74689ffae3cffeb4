// What was learned of one drafter: how often its proposals are what the LLM says, given that the
// LLM said their parents. Two views of the same trials: by the probability that the drafter itself
// gave (which orders candidates when they are known), and by depth and rank among siblings (which
// says what to expect before anything is drafted). In the first, too, depth counts: where the LLM
// and the drafter agreed so far they are likelier to agree further. Counts decay, so that old text
// is forgotten, and start from a prior, so that a few trials do not decide.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace espalier {

// One candidate below a node that the LLM agreed with; its token was known to be right or not,
// whether or not it was sent to the LLM.
struct DraftTrial {
  int depth = 1;           // of the candidate
  int rank = 0;            // among its siblings by this drafter
  double probability = 0;  // that the drafter gave
  bool accepted = false;
  double expected_acceptance = -1;  // instead, of one that was not made: what was expected of it
};

// The chance whose odds of failing are so many times those of `chance`.
inline double ScaleFailureOdds(double chance, double failing) {
  return chance / (chance + (1 - chance) * failing);
}

// How much likelier something fails than its chances say: a factor on the odds of failing, shrunk
// towards 1; logistic regression of that one number, a Newton step by each trial. Where most
// chances are near 1 a few that failed say much and many that did not little, which a factor on the
// chances themselves would have the other way about.
class FailureOdds {
 public:
  double value() const { return value_; }
  // Of a candidate whose chance is `chance` but for this. `memory`: trials after which an old one
  // counts 1/e.
  void Observe(double chance, bool accepted, double memory);
  void Fade(double keep);

 private:
  double logarithm_ = 0, value_ = 1;
  double information_ = 0;  // Fisher's, of the trials
};

class AcceptanceEstimator {
 public:
  static constexpr int kDepths = 16;  // deeper ones count as the last
  static constexpr int kRanks = 8;
  static constexpr double kMost = 0.998;  // no chance is higher, so values fall along every path

  AcceptanceEstimator() : AcceptanceEstimator(false) {}
  // Of proposals that are drawn. One is right about as often as the models agree, whatever its
  // probability: it is tested against how much the drafter favoured it (verify.h).
  static AcceptanceEstimator OfDraws();

  void Observe(const DraftTrial& trial) {
    if (trial.expected_acceptance < 0) ObserveProbability(trial);
    ObserveRank(trial);
  }
  // For the second view alone.
  void ObserveRank(const DraftTrial& trial);

  // A step has gone by: what is not tried any more, deep or of a high rank, is slowly forgotten. A
  // few unlucky trials would otherwise be the last ones.
  void Fade();

  // Of a candidate to which the drafter gives this probability and rank, at this depth (from 1):
  // the best one is right more often than its probability says if the drafter is unsure of itself,
  // and the others less.
  double OfProbability(double probability, int depth, int rank) const;
  // The least of these, whatever the probability.
  double Least(int depth, int rank) const;
  // Of the candidate of this rank at this depth (from 1), whatever its probability. Depths that
  // were hardly tried are taken to be like the ones above them.
  double OfRank(int depth, int rank) const;

  // Expected number of accepted nodes of the best trees of 1, 2, ... nodes with at most `depth`
  // levels, of children below the rank `ranks`: the most probable node first. Sequoia's positional
  // model (Chen et al. 2024), where the best tree of n nodes is the n best paths, because chances
  // fall along a path.
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
    double Shrunk(double prior) const;
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
  std::array<std::array<double, kBins>, kRankClasses> probability_values_;  // of these
  std::array<std::array<FailureOdds, kDepthClasses>, kRankClasses> by_depth_;   // beside these
  std::array<std::array<Rate, kRanks>, kDepths> by_rank_;
  mutable std::array<std::array<double, kDepths>, kRanks> rank_values_{};
  mutable std::array<bool, kRanks> known_{};  // rank_values_, by rank
};

// How much better or worse one request does than the drafter's average, shrunk towards 1.
class RequestAcceptance {
 public:
  // Of what it may yield, before anything is drafted.
  double value() const { return (accepted_ + kPrior) / (expected_ + kPrior); }
  // Of the odds that one of its candidates fails.
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
