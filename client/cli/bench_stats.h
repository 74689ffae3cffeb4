// Mean, spread and percentiles of a sample.
#pragma once

#include <vector>

namespace espalier {

struct Stats {
  double mean = 0;
  double deviation = 0;  // of the sample (n - 1); 0 for a single value
  double median = 0;
  double p90 = 0;
  double p99 = 0;
};

// Percentiles interpolate between neighbours, as numpy does. Zeros for an empty sample.
Stats StatsOf(std::vector<double> values);

}  // namespace espalier
