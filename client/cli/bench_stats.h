// Mean, spread and percentiles of a sample.
#pragma once

#include <vector>

namespace espalier {

struct Stats {
  double mean = 0;
  double deviation = 0;  // of the sample (n - 1); 0 for a single value
  double spread = 0;     // of these values alone (n), as numpy.std
  double median = 0;
  std::vector<double> sorted;

  // The value below which `percent` of the sample lie, 0 to 100; interpolates between neighbours,
  // as numpy does.
  double Percentile(double percent) const;
};

// Zeros for an empty sample.
Stats StatsOf(std::vector<double> values);

}  // namespace espalier
