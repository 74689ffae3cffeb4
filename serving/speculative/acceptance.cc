#include "serving/speculative/acceptance.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <tuple>

namespace espalier {
namespace {

constexpr double kPriorTrials = 4;
constexpr double kMemory = 512;        // trials after which an old one counts 1/e
constexpr double kRequestMemory = 64;  // the same of a request's own
constexpr double kIdleMemory = 512;    // steps

// Bins are one unit of log-odds wide, the lowest around 0.1 %.
double BinOf(double probability) {
  const double p = std::clamp(probability, 1e-6, 1 - 1e-6);
  return std::log(p / (1 - p)) + 7;
}

double RankPrior(int rank) { return rank == 0 ? 0.6 : 0.3 / ((rank + 1) * rank); }

}  // namespace

void Acceptance::Rate::Add(bool hit, double memory) {
  const double keep = 1 - 1 / memory;
  accepted = accepted * keep + (hit ? 1 : 0);
  trials = trials * keep + 1;
}

Acceptance::Acceptance() {
  for (int bin = 0; bin < kBins; ++bin) {
    by_probability_[bin] = {kPriorTrials / (1 + std::exp(7.0 - bin)), kPriorTrials};
  }
  for (auto& ranks : by_rank_) {
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks[rank] = {kPriorTrials * RankPrior(rank), kPriorTrials};
    }
  }
}

void Acceptance::Observe(const Trial& trial) {
  const int bin =
      std::clamp(static_cast<int>(std::lround(BinOf(trial.probability))), 0, kBins - 1);
  by_probability_[bin].Add(trial.accepted, kMemory);
  const int depth = std::clamp(trial.depth, 1, kDepths) - 1;
  if (trial.rank < kRanks) by_rank_[depth][trial.rank].Add(trial.accepted, kMemory);
}

double Acceptance::OfProbability(double probability) const {
  const double at = std::clamp(BinOf(probability), 0.0, kBins - 1.0);
  const int low = std::min(static_cast<int>(at), kBins - 2);
  const double share = at - low;
  const double value =
      (1 - share) * by_probability_[low].value() + share * by_probability_[low + 1].value();
  return std::min(value, kMost);
}

double Acceptance::OfRank(int depth, int rank) const {
  if (rank >= kRanks) return 0;
  return std::min(by_rank_[std::clamp(depth, 1, kDepths) - 1][rank].value(), kMost);
}

std::vector<Acceptance::Node> Acceptance::BestNodes(int depth, int count) const {
  std::vector<Node> out;
  // Value, parent, depth, rank. A node's next sibling and its first child enter when it leaves.
  using Entry = std::tuple<double, int, int, int>;
  std::priority_queue<Entry> heap;
  const auto push = [&](double base, int parent, int level, int rank) {
    if (level <= depth && rank < kRanks) {
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

void RequestFactor::Observe(double expected, bool accepted) {
  const double keep = 1 - 1 / kRequestMemory;
  accepted_ = accepted_ * keep + (accepted ? 1 : 0);
  expected_ = expected_ * keep + expected;
}

void RequestFactor::Fade() {
  accepted_ *= 1 - 1 / kIdleMemory;
  expected_ *= 1 - 1 / kIdleMemory;
}

}  // namespace espalier
