#include "client/cli/bench_stats.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace espalier {

Stats StatsOf(std::vector<double> values) {
  Stats s;
  if (values.empty()) return s;
  std::sort(values.begin(), values.end());
  const double count = static_cast<double>(values.size());
  s.mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  if (values.size() > 1) {
    double squares = 0;
    for (const double value : values) squares += (value - s.mean) * (value - s.mean);
    s.deviation = std::sqrt(squares / (count - 1));
  }
  const auto percentile = [&](double p) {
    const double at = p * (count - 1);
    const auto low = static_cast<size_t>(at);
    const size_t high = std::min(low + 1, values.size() - 1);
    return values[low] + (values[high] - values[low]) * (at - static_cast<double>(low));
  };
  s.median = percentile(0.5);
  s.p90 = percentile(0.9);
  s.p99 = percentile(0.99);
  return s;
}

}  // namespace espalier
