// For tests: planning problems small enough to enumerate every placement.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/planner.h"

namespace espalier {

struct SmallProblem {
  std::string name;
  Graph graph;
  int64_t batch = 0;
  Machine machine;

  // With plain Adam and the analytic cost model. `this` must outlive the result.
  PlanProblem Problem() const;
};

// Problem number `seed` with at most `operators` operators besides the loss: chains, residual
// blocks or two joining branches after an embedding, a convolution or an input. Shapes range from
// communication-bound to compute-bound, links from slow to fast; devices are equal or not. The same
// seed with fewer operators is a prefix of the same problem.
SmallProblem RandomProblem(uint64_t seed, int devices, int operators);

// A problem of operators with large activations and little arithmetic on two equal devices, so that
// swaps and recomputation matter.
SmallProblem ActivationHeavyProblem(uint64_t seed, int operators);

// Names of models for FirstLayers.
std::vector<std::string> ModelsWithFirstLayers();

// The first `operators` operators of a model, at its full width, and a loss.
SmallProblem FirstLayers(const std::string& model, const v1::Link& link, int devices,
                         int operators);

}  // namespace espalier
