// Colors of machine views: each set of devices has one color of its own.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace espalier {

class ViewTable {
 public:
  // Returns the index of the view, from 0 by first appearance. Order and repetition of devices do
  // not matter: a view is a set.
  int Index(std::vector<int> devices);

  size_t size() const { return views_.size(); }
  const std::vector<int>& devices(int view) const { return views_[view]; }  // ascending

 private:
  std::map<std::vector<int>, int> index_;
  std::vector<std::vector<int>> views_;
};

// Returns the hue, in degrees, of color `index`. Consecutive hues differ clearly; the first 100,000
// are distinct.
std::string Hue(int index);

}  // namespace espalier
