// Axes of pictures: which values stand where, and which are labelled.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace espalier {

// A range of values on pixels. Logarithmic if all values are positive and differ by a factor of at
// least 1000.
class Axis {
 public:
  // `low` <= `high`, finite; equal ones are widened. Values run from pixel `from` to `to`.
  Axis(double low, double high, double from, double to, bool may_be_logarithmic);

  double At(double value) const;  // REQUIRES: positive if logarithmic
  bool logarithmic() const { return logarithmic_; }
  // Values to label, ascending, with their texts: round ones within the range.
  std::vector<std::pair<double, std::string>> Ticks(int about) const;

 private:
  double low_, high_, from_, to_;
  bool logarithmic_ = false;
};

}  // namespace espalier
