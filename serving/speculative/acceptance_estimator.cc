#include "serving/speculative/acceptance_estimator.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <tuple>

namespace espalier {
namespace {

constexpr double kPriorTrials = 4;
// Of a depth, whose prior is the depth above: a few bad trials of one text must not end deep
// drafts.
constexpr double kDeepPriorTrials = 16;
constexpr double kAcceptanceMemory = 512;  // trials after which an old one counts 1/e
constexpr double kRequestMemory = 64;      // the same of a request's own
constexpr double kIdleMemory = 512;        // steps
constexpr double kFailingPrior = 8;        // information that says: as its chances are
constexpr int kFadeEvery = 16;             // steps
constexpr double kFaded = 1 - kFadeEvery / 512.0;

// Bins are one unit of log-odds wide, the lowest around 0.1 %.
double BinOf(double probability) {
  const double p = std::clamp(probability, 1e-6, 1 - 1e-6);
  return std::log(p / (1 - p)) + 7;
}

double ProbabilityOf(int bin) { return 1 / (1 + std::exp(7.0 - bin)); }

double RankPrior(int rank) { return rank == 0 ? 0.6 : 0.3 / ((rank + 1) * rank); }

}  // namespace

void FailureOdds::Observe(double chance, bool accepted, double memory) {
  const double fails = 1 - ScaleFailureOdds(chance, value_);
  information_ = information_ * (1 - 1 / memory) + fails * (1 - fails);
  const double surprise = (accepted ? 0 : 1) - fails - kFailingPrior / memory * logarithm_;
  logarithm_ += surprise / (information_ + kFailingPrior);
  value_ = std::exp(logarithm_);
}

void FailureOdds::Fade(double keep) {
  information_ *= keep;
  logarithm_ *= keep;
  value_ = std::exp(logarithm_);
}

double AcceptanceEstimator::Rate::Shrunk(double prior, double prior_trials) const {
  return (accepted + prior_trials * prior) / (trials + prior_trials);
}

void AcceptanceEstimator::Rate::Add(double weight, double hit) {
  const double keep = 1 - weight / kAcceptanceMemory;
  accepted = accepted * keep + weight * hit;
  trials = trials * keep + weight;
}

double AcceptanceEstimator::Prior(bool draws, int rank_class, int bin) {
  return draws ? RankPrior(rank_class) : ProbabilityOf(bin);
}

AcceptanceEstimator::AcceptanceEstimator(bool draws) : draws_(draws) {
  for (int c = 0; c < kRankClasses; ++c) {
    for (int bin = 0; bin < kBins; ++bin) probability_values_[c][bin] = Prior(draws, c, bin);
  }
}

AcceptanceEstimator AcceptanceEstimator::OfDraws() { return AcceptanceEstimator(true); }

void AcceptanceEstimator::ObserveProbability(const DraftTrial& trial) {
  // Between two bins both learn, as OfProbability reads them.
  const double at = std::clamp(BinOf(trial.probability), 0.0, kBins - 1.0);
  const int low = std::min(static_cast<int>(at), kBins - 2);
  const int rank = std::min(trial.rank, kRankClasses - 1);
  const int depth = std::clamp(trial.depth, 1, kDepthClasses) - 1;
  by_depth_[rank][depth].Observe(AtAnyDepth(trial.probability, rank), trial.accepted,
                                 kAcceptanceMemory);
  for (const int bin : {low, low + 1}) {
    Rate& rate = by_probability_[rank][bin];
    rate.Add(1 - std::abs(at - bin), trial.accepted ? 1 : 0);
    probability_values_[rank][bin] = rate.Shrunk(Prior(draws_, rank, bin), kPriorTrials);
  }
}

void AcceptanceEstimator::ObserveRank(const DraftTrial& trial) {
  const int depth = std::clamp(trial.depth, 1, kDepths) - 1;
  const double hit = trial.expected_acceptance >= 0 ? trial.expected_acceptance
                     : trial.accepted               ? 1
                                                    : 0;
  if (trial.rank >= kRanks) return;
  by_rank_[depth][trial.rank].Add(1, hit);
  known_[trial.rank] = false;
}

void AcceptanceEstimator::Fade() {
  if (++steps_ % kFadeEvery != 0) return;
  for (size_t depth = 0; depth < by_rank_.size(); ++depth) {
    for (size_t rank = depth == 0 ? 1 : 0; rank < kRanks; ++rank) {
      by_rank_[depth][rank].accepted *= kFaded;
      by_rank_[depth][rank].trials *= kFaded;
    }
  }
  known_ = {};
}

double AcceptanceEstimator::FailingAt(int depth, int rank) const {
  return by_depth_[std::min(rank, kRankClasses - 1)][std::clamp(depth, 1, kDepthClasses) - 1]
      .value();
}

double AcceptanceEstimator::OfProbability(double probability, int depth, int rank) const {
  return std::min(ScaleFailureOdds(AtAnyDepth(probability, rank), FailingAt(depth, rank)), kMost);
}

double AcceptanceEstimator::AtAnyDepth(double probability, int rank) const {
  const double at = std::clamp(BinOf(probability), 0.0, kBins - 1.0);
  const int low = std::min(static_cast<int>(at), kBins - 2);
  const double share = at - low;
  const auto& values = probability_values_[std::min(rank, kRankClasses - 1)];
  return (1 - share) * values[low] + share * values[low + 1];
}

double AcceptanceEstimator::Least(int depth, int rank) const {
  const auto& values = probability_values_[std::min(rank, kRankClasses - 1)];
  const double least = *std::min_element(values.begin(), values.end());
  return std::min(ScaleFailureOdds(least, FailingAt(depth, rank)), kMost);
}

double AcceptanceEstimator::OfRank(int depth, int rank) const {
  if (rank >= kRanks) return 0;
  std::array<double, kDepths>& values = rank_values_[rank];
  if (!known_[rank]) {
    known_[rank] = true;
    double above = RankPrior(rank);
    for (int d = 0; d < kDepths; ++d) {
      above = std::min(by_rank_[d][rank].Shrunk(above, d == 0 ? kPriorTrials : kDeepPriorTrials),
                       kMost);
      values[d] = above;
    }
  }
  return values[std::clamp(depth, 1, kDepths) - 1];
}

std::vector<AcceptanceEstimator::Node> AcceptanceEstimator::BestNodes(int depth, int count,
                                                                      int ranks) const {
  std::vector<Node> out;
  // Value, parent, depth, rank. A node's next sibling and its first child enter when it leaves.
  using Entry = std::tuple<double, int, int, int>;
  std::priority_queue<Entry> heap;
  const auto push = [&](double base, int parent, int level, int rank) {
    if (level <= depth && rank < std::min(ranks, kRanks)) {
      heap.emplace(base * OfRank(level, rank), parent, level, rank);
    }
  };
  push(1, -1, 1, 0);
  while (!heap.empty() && static_cast<int>(out.size()) < count) {
    const auto [value, parent, level, rank] = heap.top();
    heap.pop();
    out.push_back({value, level, parent});
    push(parent < 0 ? 1 : out[parent].value, parent, level, rank + 1);
    push(value, static_cast<int>(out.size()) - 1, level + 1, 0);
  }
  return out;
}

void RequestAcceptance::Observe(double expected, bool accepted) {
  const double keep = 1 - 1 / kRequestMemory;
  failing_.Observe(expected, accepted, kRequestMemory);
  accepted_ = accepted_ * keep + (accepted ? 1 : 0);
  expected_ = expected_ * keep + expected;
}

void RequestAcceptance::Fade() {
  failing_.Fade(1 - 1 / kIdleMemory);
  accepted_ *= 1 - 1 / kIdleMemory;
  expected_ *= 1 - 1 / kIdleMemory;
}

}  // namespace espalier
