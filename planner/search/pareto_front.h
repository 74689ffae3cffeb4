// Minimizes two sums over a graph at once by variable elimination, keeping the Pareto front.
//
// Like variable_elimination.h, but every choice of the variables keeps the pairs of time and memory
// that no other pair beats in both. Bisection on a weight between the two finds only one pair at a
// time, and none inside the convex hull.
#pragma once

#include <vector>

#include "planner/search/variable_elimination.h"

namespace espalier {

struct ParetoPoint {
  double time = 0;
  double memory = 0;
  std::vector<int> choices;  // by variable
};

// Returns the Pareto front of sum(times) and the sum over variables of memory[variable][choice],
// fastest first. `choices` and `given` as for Elimination. If a front, final or intermediate,
// exceeds `most` points, drops those closest to others in memory: the points that remain are
// achievable, but a better one between them may be lost.
std::vector<ParetoPoint> ParetoFront(const std::vector<int>& choices, const std::vector<int>& given,
                                     const std::vector<Factor>& times,
                                     const std::vector<std::vector<double>>& memory, int most);

}  // namespace espalier
