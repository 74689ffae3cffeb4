// Mean, deviation and percentiles of a sample.
#pragma once

#include <vector>

namespace espalier {

struct Stats {
  double mean = 0;
  double deviation = 0;  // sample standard deviation (n - 1); 0 for a single value
  double spread = 0;     // population standard deviation (n), as numpy.std
  double median = 0;
  std::vector<double> sorted;

  // Returns the value below which `percent` (0 to 100) of the sample lie; interpolates linearly, as
  // numpy does.
  double Percentile(double percent) const;
};

// Returns zeros for an empty sample.
Stats StatsOf(std::vector<double> values);

}  // namespace espalier
