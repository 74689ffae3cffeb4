// Planning problems that are small enough for every placement to be tried: what the search is
// measured against.
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

  // With plain Adam and the analytic cost model. This must outlive it.
  PlanProblem Problem() const;
};

// Problem number `seed`, with at most `operators` operators besides the loss: chains, blocks with a
// connection around them, two branches that join, after an embedding, a convolution or an input.
// Shapes from where communication rules to where arithmetic does, slow to fast links, devices that
// are alike or not. Fewer operators of the same seed are the beginning of the same problem.
SmallProblem RandomProblem(uint64_t seed, int devices, int operators);

// Likewise of operators that keep much and multiply little, so that activations take most of the
// memory, between two devices alike: what swaps and recomputation are for.
SmallProblem ActivationHeavyProblem(uint64_t seed, int operators);

// Names of models for FirstLayers.
std::vector<std::string> ModelsWithFirstLayers();

// The first `operators` operators of a model, at its full width, and a loss.
SmallProblem FirstLayers(const std::string& model, const v1::Link& link, int devices,
                         int operators);

}  // namespace espalier
