#include "serving/speculative/draft_size_exploration.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace espalier {
namespace {

constexpr double kNearlyAsGood = 0.8;  // of the best rate
constexpr double kFarWorse = 0.4;
constexpr int kFarEvery = 4;  // tries
// Sizes that are multiples of them are tried, and all that is offered.
constexpr int kTryFewRows = 8, kManyRows = 32;  // of this up to so many rows
constexpr int kTryRows = 16;

}  // namespace

bool IsFarExploration(int turn) { return turn % kFarEvery == 0; }

int NodesToExplore(StepLoad load, const StepLatencyModel& llm, absl::Span<const double> chances,
                   int best, int turn, int unit) {
  std::vector<std::pair<int, double>> rates;
  const int most = static_cast<int>(chances.size());
  const bool far = IsFarExploration(turn);
  double best_rate = StepGoodput(load, llm);
  for (int n = 1; n <= most; ++n) {
    ++load.nodes;
    load.gain += chances[n - 1];
    const double rate = StepGoodput(load, llm);
    if (n == best) best_rate = rate;
    const int rows = load.decoding + load.nodes;
    const bool round = rows % (rows > kManyRows ? kTryRows : kTryFewRows) == 0;
    const bool tried = unit > 1 ? n % unit == 0 : round || n == most;
    if ((tried && n != best) || (far && n == best)) rates.emplace_back(n, rate);
  }
  const int without = load.decoding + load.nodes - most;
  std::erase_if(rates, [&](const auto& size) {
    const double share = size.second / best_rate;
    if (!far) return share < kNearlyAsGood;
    return share < kFarWorse || size.first < best || llm.Proven(without + size.first);
  });
  if (rates.empty()) return best;
  if (!far) return rates[static_cast<size_t>(turn) % rates.size()].first;
  return std::max_element(rates.begin(), rates.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

}  // namespace espalier
