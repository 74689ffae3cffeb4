// Runs one operator on one device, whole or partitioned by its split rule, and combines the shards'
// results: computes what a plan with this partition computes.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ops/schema/registry.h"
#include "tests/gpu/backend.h"

namespace espalier::conformance {

using gpu_check::HostTensor;

struct OperatorRun {
  const OpDef* def = nullptr;
  NodeTypes types;  // of the whole operator, inferred
  std::vector<HostTensor> inputs;
  std::optional<std::vector<HostTensor>> output_gradients;  // none: forward only
  gpu_check::RunOptions options;
  bool batch_invariant = false;
  std::map<std::string, int> degrees;  // of the axes that are split, by name
};

struct OperatorResult {
  std::vector<HostTensor> outputs;
  std::vector<HostTensor> inputs_after;       // kernels may update inputs
  std::map<int, HostTensor> input_gradients;  // of the differentiable inputs that are present
  bool summed = false;                        // some result is a sum over shards
};

// Returns an error, or an empty string. It is an error if two replicas of an input differ
// afterwards.
std::string Run(gpu_check::Backend* backend, const OperatorRun& run, OperatorResult* result);

}  // namespace espalier::conformance
