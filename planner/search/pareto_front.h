// Minimises two sums over a graph at once: all that is not worse in both, one variable at a time.
//
// As factors.h, but that each choice of the variables has a front: the pairs of time and memory of
// which none is beaten by another in both. It takes the place of bisection on the weight of one
// against the other, which finds one pair at a time, and none that lies inside of the hull.
#pragma once

#include <vector>

#include "planner/search/variable_elimination.h"

namespace espalier {

struct ParetoPoint {
  double time = 0;
  double memory = 0;
  std::vector<int> choices;  // by variable
};

// The front of sum(times) and sum over variables of memory[variable][choice], fastest first.
// choices and given as Elimination. Of more than `most` points, here and in between, those are left
// out that are nearest to others in memory: what is kept is still possible, but another pair
// between may be.
std::vector<ParetoPoint> ParetoFront(const std::vector<int>& choices, const std::vector<int>& given,
                                    const std::vector<Factor>& times,
                                    const std::vector<std::vector<double>>& memory, int most);

}  // namespace espalier
