// Machine views on the page: each set of devices has one colour, and no two share one.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace espalier {

class ViewTable {
 public:
  // Number of the view, from 0 by first appearance. Order and repetition of devices do not matter:
  // a view is the set.
  int Index(std::vector<int> devices);

  size_t size() const { return views_.size(); }
  const std::vector<int>& devices(int view) const { return views_[view]; }  // ascending

 private:
  std::map<std::vector<int>, int> index_;
  std::vector<std::vector<int>> views_;
};

// Hue in degrees of the i-th colour, as text. Neighbours differ clearly; no two of the first
// 100,000 are equal.
std::string Hue(int index);

}  // namespace espalier
