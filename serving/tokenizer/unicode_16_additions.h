// Code points that Unicode 15.0, 15.1 and 16.0 added to Unicode 14.0.
#pragma once

#include <vector>

namespace espalier {

struct AddedRange {
  char32_t first, last;
  char category[3];  // general category
};

// Disjoint, ascending.
const std::vector<AddedRange>& Unicode16Additions();

}  // namespace espalier
