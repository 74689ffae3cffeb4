#include "client/cli/bench/stats.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace espalier {

double Stats::Percentile(double percent) const {
  if (sorted.empty()) return 0;
  const double at = percent / 100 * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (at - static_cast<double>(low));
}

Stats StatsOf(std::vector<double> values) {
  Stats s;
  if (values.empty()) return s;
  std::sort(values.begin(), values.end());
  const double count = static_cast<double>(values.size());
  s.mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) squares += (value - s.mean) * (value - s.mean);
  s.spread = std::sqrt(squares / count);
  if (values.size() > 1) s.deviation = std::sqrt(squares / (count - 1));
  s.sorted = std::move(values);
  s.median = s.Percentile(50);
  return s;
}

}  // namespace espalier
